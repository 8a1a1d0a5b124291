'use strict';
// What a page's figures can do beyond being looked at: values beside the pointer, zoom, series that are shown or
// hidden by the legend, an address that keeps both, figures saved as SVG, PNG and CSV. Values are read back from the
// drawn paths, so that the page holds every number once. `page.test.js` tries what is pure.

// Vertices of path data made of M, l, h and v: x, y and the command.
const vertices = d => {
  const points = [];
  let x = 0, y = 0, command = '', first = 0, pending = false;
  for (const [token] of d.matchAll(/[Mlhv]|-?(?:\d+\.?\d*|\.\d+)/g)) {
    if (/[Mlhv]/.test(token)) { command = token; pending = false; continue; }
    const number = +token;
    if (command === 'h') { x += number; points.push([x, y, command]); }
    else if (command === 'v') { y += number; points.push([x, y, command]); }
    else if (!pending) { first = number; pending = true; }
    else {
      pending = false;
      if (command === 'M') { x = first; y = number; } else { x += first; y += number; }
      points.push([x, y, command]);
    }
  }
  return points;
};

// The vertices that are samples: not the corners of steps, and every dot once.
const samples = points => points.filter(([x, y, command], index) => {
  const next = points[index + 1];
  return !next || next[2] === 'M' || next[0] !== x || (command !== 'h' && next[1] !== y);
});

// Height of a series at x: the vertex nearest in x, and none farther than twelve units.
const heightAt = (points, x) => {
  let low = 0, high = points.length - 1;
  if (high < 0) return null;
  while (high - low > 1) { const middle = (low + high) >> 1; if (points[middle][0] <= x) low = middle; else high = middle; }
  const nearest = Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? low : high;
  return Math.abs(points[nearest][0] - x) < 12 ? points[nearest][1] : null;
};

const three = value => {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
};

const niceStep = (span, count) => {
  const rough = span / count, power = 10 ** Math.floor(Math.log10(rough)), share = rough / power;
  return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
};

// Address fragments: '#e1c2&zoom.e1c1r1-goodput=10,20&off.e1c1r1-goodput=background': a place on the page, the seconds
// that the figures beginning with this one show, and the series that a figure hides.
const stateOf = hash => {
  const state = { anchor: '', zoom: new Map(), off: new Map() };
  const plain = text => { try { return decodeURIComponent(text); } catch { return text; } };
  for (const part of hash.replace(/^#/, '').split('&')) {
    const [, kind, id, value] = /^(zoom|off)\.([^=]+)=(.*)$/.exec(part) ?? [];
    const [from, to] = (value ?? '').split(',').map(Number);
    if (kind === 'zoom' && from < to) state.zoom.set(plain(id), [from, to]);
    if (kind === 'off') state.off.set(plain(id), (state.off.get(plain(id)) ?? new Set()).add(plain(value)));
    if (!kind && !part.includes('=')) state.anchor = plain(part);
  }
  return state;
};
const hashOf = ({ anchor, zoom, off }) => {
  const parts = [encodeURIComponent(anchor)];
  for (const [id, span] of zoom) parts.push(`zoom.${encodeURIComponent(id)}=${span.map(end => +end.toPrecision(7))}`);
  for (const [id, labels] of off) for (const label of labels) parts.push(`off.${encodeURIComponent(id)}=${encodeURIComponent(label)}`);
  return parts.join('&') && '#' + parts.join('&');
};

// RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe before it.
const csv = rows => rows.map(row => row.map(cell => {
  const text = typeof cell === 'string' && /^[=+\-@\t\r]/.test(cell) ? "'" + cell : String(cell ?? '');
  return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}).join(',') + '\r\n').join('');

// Where a box goes that is to stand beside a point and not over it: right of it, else left, else above or below.
const beside = ([x, y], [width, height], [roomX, roomY]) => {
  const gap = 16, within = (value, size, room) => Math.max(0, Math.min(value, room - size));
  if (x + gap + width <= roomX) return [x + gap, within(y - height / 2, height, roomY)];
  if (x - gap - width >= 0) return [x - gap - width, within(y - height / 2, height, roomY)];
  return [within(x - width / 2, width, roomX), y - gap - height >= 0 ? y - gap - height : y + gap];
};

if (typeof module !== 'undefined') module.exports = { vertices, samples, heightAt, three, niceStep, stateOf, hashOf, csv, beside };

if (typeof document !== 'undefined') (() => {
  document.documentElement.classList.add('js');
  const SVG = 'http://www.w3.org/2000/svg';
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (parent) parent.append(element);
    return element;
  };
  const idOf = svg => svg.querySelector('title').id.replace(/-t$/, '');
  const titleOf = svg => svg.querySelector('title').textContent;
  const state = stateOf(location.hash);
  const remember = () => history.replaceState(null, '', hashOf(state) || location.pathname + location.search);

  class Chart {
    constructor(svg, group) {
      this.svg = svg;
      this.group = group;
      this.id = idOf(svg);
      for (const key of ['left', 'top', 'width', 'bottom', 'ceiling', 'x0', 'x1', 'y0', 'y1', 'log', 'above', 'below']) this[key] = +svg.dataset[key];
      this.plot = svg.querySelector('.plot');
      this.cross = svg.querySelector('.crosshair');
      this.ticks = svg.querySelector('.x-ticks');
      this.from = this.x0; this.to = this.x1;
      // It is a picture no more: its legend can be used.
      svg.setAttribute('role', 'group');
      svg.tabIndex = 0;
      svg.addEventListener('pointermove', event => this.move(event));
      svg.addEventListener('pointerleave', () => group.hide());
      svg.addEventListener('blur', () => group.hide());
      svg.addEventListener('pointerdown', event => this.down(event));
      svg.addEventListener('pointerup', event => this.up(event));
      svg.addEventListener('dblclick', () => group.zoom(this.x0, this.x1));
      svg.addEventListener('keydown', event => this.key(event));
      for (const entry of svg.querySelectorAll('.entry')) this.legend(entry);
    }
    legend(entry) {
      const label = entry.dataset.for;
      entry.setAttribute('role', 'button');
      entry.setAttribute('aria-label', `show ${label}`);
      entry.tabIndex = 0;
      const toggle = event => {
        const hidden = state.off.get(this.id) ?? new Set();
        if (!hidden.delete(label)) hidden.add(label);
        if (hidden.size) state.off.set(this.id, hidden); else state.off.delete(this.id);
        this.showSeries();
        remember();
        event.preventDefault();
        event.stopPropagation();
      };
      entry.addEventListener('pointerdown', event => event.stopPropagation());
      entry.addEventListener('dblclick', event => event.stopPropagation());
      entry.addEventListener('click', toggle);
      entry.addEventListener('keydown', event => { if (event.key === 'Enter' || event.key === ' ') toggle(event); });
    }
    isHidden(label) { return state.off.get(this.id)?.has(label) ?? false; }
    showSeries() {
      for (const path of this.plot.querySelectorAll('[data-label]')) path.classList.toggle('off', this.isHidden(path.dataset.label));
      for (const entry of this.svg.querySelectorAll('.entry')) {
        entry.classList.toggle('off', this.isHidden(entry.dataset.for));
        entry.setAttribute('aria-pressed', !this.isHidden(entry.dataset.for));
      }
    }
    series() {
      this.read ??= [...this.plot.querySelectorAll('.series')].map(path => ({
        label: path.dataset.label, faint: path.classList.contains('faint'), className: path.getAttribute('class'),
        points: vertices(path.getAttribute('d')),
      }));
      return this.read;
    }
    bands() {
      return [...this.plot.querySelectorAll('.band')].map(band => {
        const from = +band.getAttribute('x');
        return [band.dataset.label, band.getAttribute('class'), from, from + +band.getAttribute('width'), +band.dataset.value];
      });
    }
    timeOf(event) {
      const box = this.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * this.svg.viewBox.baseVal.width;
      const share = Math.min(1, Math.max(0, (x - this.left) / this.width));
      return this.from + share * (this.to - this.from);
    }
    place(time) { return this.left + (time - this.from) / (this.to - this.from) * this.width; }
    value(height) {
      const share = (this.bottom - height) / (this.bottom - this.ceiling);
      return this.log ? this.y0 * (this.y1 / this.y0) ** share : this.y0 + share * (this.y1 - this.y0);
    }
    // What does not fit the axis is drawn at its end: 'above' or 'below' it.
    beyond(height) {
      const slack = .01;
      return this.above && height <= this.ceiling + slack ? 'above' : this.below && height >= this.bottom - slack ? 'below' : '';
    }
    text(height) { return { above: '≥ ', below: '≤ ', '': '' }[this.beyond(height)] + three(this.value(height)); }
    move(event) {
      const time = this.timeOf(event);
      if (this.start !== undefined) this.area(time);
      this.group.show(this, time, event.clientY);
    }
    down(event) {
      if (event.pointerType !== 'mouse' || event.button !== 0) return;
      this.start = this.timeOf(event);
      this.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
      this.svg.focus({ preventScroll: true });
    }
    up(event) {
      if (this.start === undefined) return;
      const [from, to] = [this.start, this.timeOf(event)].sort((a, b) => a - b);
      this.start = undefined;
      this.shade?.remove();
      if (to - from > (this.to - this.from) / 60) this.group.zoom(from, to);
    }
    area(time) {
      this.shade?.remove();
      const [a, b] = [this.place(this.start), this.place(time)].sort((a, b) => a - b);
      this.shade = make('rect', { class: 'zoomarea', x: a, y: this.top, width: b - a, height: this.bottom }, this.svg);
    }
    key(event) {
      const span = this.to - this.from, step = span / (event.shiftKey ? 20 : 200);
      const now = this.group.time ?? (this.from + this.to) / 2;
      const moved = { ArrowLeft: now - step, ArrowRight: now + step }[event.key];
      const wider = { '+': .5, '-': 2 }[event.key];
      if (moved !== undefined) this.group.show(this, Math.min(this.to, Math.max(this.from, moved)));
      else if (wider) this.group.zoom(Math.max(this.x0, now - span * wider / 2), Math.min(this.x1, now + span * wider / 2));
      else if (event.key === 'Escape') { this.group.hide(); this.group.zoom(this.x0, this.x1); }
      else return;
      event.preventDefault();
    }
    crosshair(time) {
      this.svg.classList.add('hovered');
      this.cross.setAttribute('transform', `translate(${this.place(time)} 0)`);
    }
    zoom(from, to) {
      this.from = from; this.to = to;
      const scale = this.width / (this.x1 - this.x0);
      this.plot.setAttribute('viewBox', `${(from - this.x0) * scale} 0 ${(to - from) * scale} ${this.bottom}`);
      const step = niceStep(to - from, 6), decimals = Math.max(0, -Math.floor(Math.log10(step)));
      const first = Math.ceil(from / step - 1e-9), last = Math.floor(to / step + 1e-9), y = this.top + this.bottom;
      this.ticks.replaceChildren();
      for (let index = first; index <= last; index++) {
        const x = this.place(index * step);
        make('path', { class: 'axis', d: `M${x} ${y}v4` }, this.ticks);
        make('text', { class: 'tick middle', x, y: y + 18 }, this.ticks).textContent =
          (index * step).toFixed(decimals) + (index === last ? ' s' : '');
      }
    }
    rows(time) {
      const x = (time - this.x0) / (this.x1 - this.x0) * this.width;
      const rows = [], many = new Map();
      for (const series of this.series()) {
        const height = heightAt(series.points, x);
        if (height === null || this.isHidden(series.label)) continue;
        if (!series.faint) { rows.unshift([series.label, series.className, this.text(height)]); continue; }
        if (!many.has(series.label)) many.set(series.label, [series.className, []]);
        many.get(series.label)[1].push(height);
      }
      for (const [label, [className, heights]] of many)
        rows.push([label, className, this.text(Math.max(...heights)) + ' … ' + this.text(Math.min(...heights))]);
      // Of a band its part of the time is read out.
      for (const [label, className, from, to, value] of this.bands())
        if (from <= x && x < to && !this.isHidden(label)) rows.push([label, className, value + ' %']);
      return rows;
    }
    table() {
      const time = x => +(this.x0 + x / this.width * (this.x1 - this.x0)).toPrecision(6);
      const rows = this.series().flatMap(series => samples(series.points).map(([x, y]) =>
        [series.label, time(x), +this.value(y).toPrecision(4), this.beyond(y)]));
      for (const [label, , from, , value] of this.bands()) rows.push([label, time(from), value, '']);
      for (const rug of this.plot.querySelectorAll('.rug'))
        for (const [x, , command] of vertices(rug.getAttribute('d'))) if (command === 'M') rows.push([rug.dataset.label, time(x), '', '']);
      return [['Series', 'Time, s', titleOf(this.svg).replace(/ \(logarithmic\)$/, ''), 'Beyond the axis'], ...rows];
    }
  }

  class Group {
    constructor(charts) {
      this.charts = charts.map(svg => new Chart(svg, this));
      this.id = this.charts[0].id;
      this.box = document.createElement('div');
      this.box.className = 'readout';
      this.box.setAttribute('role', 'status');
    }
    show(chart, time, pointerY) {
      this.time = time;
      for (const each of this.charts) each.crosshair(time);
      const head = document.createElement('b');
      head.textContent = time.toFixed(2) + ' s';
      this.box.replaceChildren(head, ...chart.rows(time).map(row => this.row(row)));
      document.body.append(this.box);
      const drawn = chart.svg.getBoundingClientRect(), scale = drawn.width / chart.svg.viewBox.baseVal.width;
      const point = [drawn.left + chart.place(time) * scale, pointerY ?? drawn.top + (chart.top + chart.bottom / 2) * scale];
      const room = [document.documentElement.clientWidth, document.documentElement.clientHeight];
      const [left, top] = beside(point, [this.box.offsetWidth, this.box.offsetHeight], room);
      this.box.style.left = left + 'px';
      this.box.style.top = top + 'px';
    }
    row([label, className, value]) {
      const row = document.createElement('div'), name = document.createElement('span'), figure = document.createElement('span');
      const swatch = make('svg', { class: 'figure', viewBox: '0 0 20 6' });
      make('path', { class: className, d: className.startsWith('band') ? 'M0 0h20v6h-20z' : 'M0 3h20' }, swatch);
      name.append(swatch, label);
      figure.textContent = value;
      row.append(name, figure);
      return row;
    }
    hide() {
      this.time = undefined;
      this.box.remove();
      for (const each of this.charts) each.svg.classList.remove('hovered');
    }
    zoom(from, to) {
      const [{ x0, x1 }] = this.charts;
      if (from <= x0 && to >= x1) state.zoom.delete(this.id); else state.zoom.set(this.id, [from, to]);
      this.hide();
      this.apply();
      remember();
    }
    // Shows what the address says.
    apply() {
      for (const chart of this.charts) {
        const [from, to] = state.zoom.get(this.id) ?? [chart.x0, chart.x1];
        if (from !== chart.from || to !== chart.to) chart.zoom(from, to);
        chart.showSeries();
      }
    }
  }

  const save = (name, blob) => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  };
  // The figure as it is shown, light, with a margin, and without variables of the style sheet.
  const standalone = svg => {
    const copy = svg.cloneNode(true), margin = 12, { width, height } = svg.viewBox.baseVal;
    for (const part of copy.querySelectorAll('.off, .crosshair, .zoomarea, .hit')) part.remove();
    for (const name of ['role', 'tabindex', 'style']) copy.removeAttribute(name);
    for (const entry of copy.querySelectorAll('.entry')) for (const name of ['role', 'tabindex', 'aria-label', 'aria-pressed']) entry.removeAttribute(name);
    const sheet = document.querySelector('style').textContent;
    let rules = sheet.split('\n').filter(line => line.startsWith('svg.figure')).join('\n');
    for (const [, name, value] of /:root\{([^}]*)\}/.exec(sheet)[1].matchAll(/(--[\w-]+):([^;]*)/g)) rules = rules.replaceAll(`var(${name})`, value);
    const size = [width + 2 * margin, height + 2 * margin];
    copy.setAttribute('viewBox', `${-margin} ${-margin} ${size.join(' ')}`);
    copy.setAttribute('width', size[0]); copy.setAttribute('height', size[1]);
    const paper = make('rect', { class: 'paper', x: -margin, y: -margin, width: size[0], height: size[1] });
    const style = make('style', {});
    style.textContent = rules;
    copy.prepend(style, paper);
    return [new XMLSerializer().serializeToString(copy), size];
  };
  const png = (svg, done) => {
    const [text, [width, height]] = standalone(svg), image = new Image(), canvas = document.createElement('canvas'), scale = 3;
    image.onload = () => {
      canvas.width = width * scale; canvas.height = height * scale;
      canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(done, 'image/png');
    };
    image.src = 'data:image/svg+xml,' + encodeURIComponent(text);
  };
  const table = (svg, chart) => {
    if (chart) return chart.table();
    return [JSON.parse(svg.dataset.columns), ...[...svg.querySelectorAll('[data-row]')].map(part => JSON.parse(part.dataset.row))];
  };
  const tools = (figure, svg, chart) => {
    const bar = document.createElement('div'), name = idOf(svg);
    bar.className = 'tools';
    const button = (kind, act) => {
      const made = document.createElement('button');
      made.type = 'button';
      made.textContent = kind;
      made.setAttribute('aria-label', `Save as ${kind}: ${titleOf(svg)}`);
      made.addEventListener('click', act);
      bar.append(made);
    };
    button('SVG', () => save(name + '.svg', new Blob([standalone(svg)[0]], { type: 'image/svg+xml' })));
    button('PNG', () => png(svg, blob => save(name + '.png', blob)));
    if (chart || svg.dataset.columns) button('CSV', () => save(name + '.csv', new Blob([csv(table(svg, chart))], { type: 'text/csv' })));
    figure.append(bar);
  };

  let groups = [];
  // Brings what is drawn, or drawn anew, to life.
  const enliven = () => {
    for (const group of groups) group.hide();
    groups = groups.filter(group => group.charts[0].svg.isConnected);
    const known = new Map(groups.flatMap(group => group.charts.map(chart => [chart.svg, chart])));
    const together = new Map();
    for (const svg of document.querySelectorAll('svg[data-chart=time]')) {
      const of = svg.closest('.panels, .linked') ?? svg;
      if (!known.has(svg)) together.set(of, [...(together.get(of) ?? []), svg]);
    }
    for (const charts of together.values()) {
      const group = new Group(charts);
      groups.push(group);
      for (const chart of group.charts) known.set(chart.svg, chart);
      group.apply();
    }
    for (const svg of document.querySelectorAll('figure>svg.figure')) {
      const figure = svg.parentElement;
      if (!figure.querySelector('.tools')) tools(figure, svg, known.get(svg));
    }
  };
  // To the place that the address names, else to the first figure that it changes.
  const goThere = () => {
    const changed = groups.flatMap(group => group.charts).find(chart => state.off.has(chart.id) || state.zoom.has(chart.group.id) && chart === chart.group.charts[0]);
    const there = state.anchor ? document.getElementById(state.anchor) : changed?.svg;
    for (let part = there; part; part = part.parentElement) if (part.tagName === 'DETAILS') part.open = true;
    there?.scrollIntoView();
  };
  addEventListener('hashchange', () => {
    const asked = stateOf(location.hash);
    state.anchor = asked.anchor;
    // A link within the page keeps what is zoomed and hidden.
    if (asked.zoom.size || asked.off.size) Object.assign(state, asked);
    for (const group of groups) group.apply();
    remember();
  });
  addEventListener('scroll', () => groups.forEach(group => group.hide()), { passive: true });
  document.addEventListener('drawn', enliven);
  enliven();
  if (state.zoom.size || state.off.size) goThere();
})();
