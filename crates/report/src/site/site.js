'use strict';
// Shows a session under way anew every second, until it has ended or a person pauses it.
(() => {
  const shown = document.getElementById('live'), pause = document.getElementById('pause');
  let paused = false;
  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', paused);
    pause.textContent = paused ? 'Go on' : 'Pause';
  });
  const look = async () => {
    if (!paused && !document.hidden) {
      try {
        const answer = await fetch(shown.dataset.from);
        if (answer.status === 410) { location.reload(); return; }
        if (answer.ok) {
          shown.innerHTML = await answer.text();
          document.dispatchEvent(new Event('drawn'));
        }
      } catch { /* The program that serves has ended; what was shown last stays. */ }
    }
    setTimeout(look, 1000);
  };
  setTimeout(look, 1000);
})();
