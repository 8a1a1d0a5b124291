#!/usr/bin/env python3
"""`longfat lab serve` and the pages of `analyze`, `why` and `report` in a real browser: headless Chromium at desktop and
phone widths, and by keyboard alone.

The browser is driven by WebDriver (W3C) through chromedriver, of which Python's own library is enough. Every finding is
printed; the exit code is 1 when there is one. `SCREENSHOTS=DIR` keeps what was seen.
"""

import base64
import contextlib
import gzip
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("LONGFAT", str(ROOT / "target/debug/longfat"))
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
SIZES = {"desktop": (1280, 900), "laptop": (1024, 768), "phone": (390, 844), "small-phone": (360, 740)}
TAB, ENTER, SPACE, LEFT = "\ue004", "\ue007", " ", "\ue012"

SPEC = """
name = "browsed"
title = "A sweep to look at"
warmup = "200ms"
duration = "800ms"
repeats = 3
focus = "measured"
expect = ["goodput > 1Mbit"]
[hosts.a]
[hosts.b]
[links.path]
between = ["a", "b"]
delay = "5ms"
queue = { limit = "50KB" }
[flows.measured]
from = "a"
to = "b"
cc = "reno"
[sweep]
"links.path.rate" = ["10Mbit", "20Mbit"]
"""

# Nearly every column that a summary has, and titles as long as people write them.
WIDE = """
name = "wide"
title = "Every column"
warmup = "200ms"
duration = "1s"
repeats = 2
focus = "measured"
[hosts.sender]
[hosts.gateway]
forward = true
[hosts.receiver]
[links.lan]
between = ["sender", "gateway"]
[links.path]
between = ["gateway", "receiver"]
rate = "50Mbit"
delay = "5ms"
queue = { limit = "64KB" }
[flows.measured]
from = "sender"
to = "receiver"
cc = "reno"
echo_every = "100KB"
[flows.others]
from = "gateway"
to = "receiver"
cc = "lf_highspeed"
streams = 3
[relays.pep]
host = "gateway"
intercept = ["lan"]
cc_client = "reno"
cc_server = "lf_highspeed"
enabled = false
[[cases]]
name = "plain"
title = "Reno end to end, beside three HighSpeed flows of the same path"
published = [{ metric = "goodput_bps", of = "measured", value = 20.7e6 }]
[[cases]]
name = "relayed"
title = "Reno through the relay, HighSpeed on the long leg, beside three flows"
set = { "relays.pep.enabled" = true, "relays.pep.queue" = { target = "off" } }
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def running(*command, **how):
    """A process that ends with the block, however that ends."""
    process = subprocess.Popen(command, **how)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


class Browser:
    """One headless Chromium."""

    def __init__(self, port, profile):
        self.base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        # Nothing but this machine can be reached: a page that needs more shows it.
        arguments += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking"]
        # A phone is narrower than Chromium's least window: emulated width is set for each size.
        options = {"args": arguments}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        for _ in range(100):
            try:
                answer = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        else:
            raise SystemExit("chromedriver does not answer")
        self.session = f"/session/{answer['sessionId']}"

    def ask(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error

    def do(self, path, body=None):
        return self.ask("POST", self.session + path, body)

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.do("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def open(self, url):
        self.do("/url", {"url": url})

    def url(self):
        return self.ask("GET", self.session + "/url")

    def script(self, text, *arguments):
        return self.do("/execute/sync", {"script": text, "args": list(arguments)})

    def press(self, *keys):
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.do("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def complaints(self, *expected):
        said = [line["message"] for line in self.do("/se/log", {"type": "browser"})]
        return [line for line in said if not any(words in line for words in ("favicon", *expected))]

    def screenshot(self, name):
        if place := os.environ.get("SCREENSHOTS"):
            Path(place).mkdir(parents=True, exist_ok=True)
            picture = base64.b64decode(self.ask("GET", self.session + "/screenshot"))
            (Path(place) / f"{name}.png").write_bytes(picture)


@contextlib.contextmanager
def browsing(profile):
    """A browser, and chromedriver for as long as it is used."""
    port = free_port()
    with running("chromedriver", f"--port={port}", "--log-level=SEVERE", stdout=subprocess.DEVNULL):
        try:
            yield Browser(port, profile)
        finally:
            # A signal ends chromedriver alone: asked, it ends Chromium too, also one whose session was never told.
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/shutdown", timeout=30).close()


findings = []


def check(what, holds, seen=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {seen}'}", file=sys.stderr)
    if not holds:
        findings.append(what)


LAYOUT = """
const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
const small = [...document.querySelectorAll('button, select, input[type=search], .pick label')]
  .map(e => [e.outerHTML.slice(0, 60), e.getBoundingClientRect()]).filter(([, b]) => b.width < 24 || b.height < 24).map(([h]) => h);
const cut = innerWidth < 1000 ? [] : [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)
  .map(e => [e.querySelector('caption').textContent.slice(0, 60), e.scrollWidth - e.clientWidth]);
const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
const nameless = [...document.querySelectorAll('input, select, button, a')]
  .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.[0]?.textContent.trim())).map(e => e.outerHTML.slice(0, 80));
return {wide, cut, small, twice, nameless, headings: document.querySelectorAll('h1').length, lang: document.documentElement.lang};
"""

CONTRAST = """
const channel = v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
const light = c => .2126 * channel(c[0]) + .7152 * channel(c[1]) + .0722 * channel(c[2]);
const numbers = text => text.match(/[\\d.]+/g).map(Number);
const paper = e => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor); if (c[3] === undefined || c[3] > .99) return c; } return [255, 255, 255]; };
const poor = [];
for (const e of document.querySelectorAll('main *')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || e.closest('svg, script, style') || !e.getClientRects().length) continue;
  const a = light(numbers(getComputedStyle(e).color)), b = light(paper(e));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) poor.push([e.textContent.trim().slice(0, 40), ratio.toFixed(2)]);
}
return poor;
"""


def look(browser, what, url, name, *expected, headings=1):
    browser.open(url)
    browser.screenshot(name)
    browser.script("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    layout = browser.script(LAYOUT)
    check(f"{what}: nothing is wider than the window", layout["wide"] <= 0, layout["wide"])
    check(f"{what}: no table is cut", not layout["cut"], layout["cut"])
    check(f"{what}: what is pressed is large enough (24 px)", not layout["small"], layout["small"])
    check(f"{what}: everything that can be reached has a name", not layout["nameless"], layout["nameless"])
    check(f"{what}: no id stands twice", not layout["twice"], layout["twice"])
    check(f"{what}: as many main headings as results, a language", layout["headings"] == headings and layout["lang"] == "en", layout)
    poor = browser.script(CONTRAST)
    check(f"{what}: text stands out from its paper (4.5:1)", not poor, poor)
    check(f"{what}: the browser has nothing to complain of", not (said := browser.complaints(*expected)), said)


def focused(browser):
    return browser.script(
        "const e = document.activeElement; return [e.tagName, e.name || '', e.value || '', e.textContent.trim().slice(0, 60), "
        "getComputedStyle(e).outlineStyle !== 'none' && getComputedStyle(e).outlineWidth !== '0px'];"
    )


def tab_to(browser, wanted, most=60):
    """Presses Tab until what has the focus is wanted; every stop must be seen."""
    for _ in range(most):
        browser.press(TAB)
        at = focused(browser)
        if at[0] != "BODY" and not at[4]:
            check("by keyboard: the focus is seen", False, at)
        if wanted(at):
            return at
    return None


def wait_for(holds, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if holds():
            return True
        time.sleep(0.1)
    return False


def by_keyboard(browser, home):
    browser.open(home)
    check("by keyboard: the name filter is reached", tab_to(browser, lambda at: at[1] == "text") is not None)
    browser.press(*"two", ENTER)
    filtered = wait_for(lambda: "text=two" in browser.url())
    count = browser.script("return document.querySelectorAll('tbody tr').length")
    check("by keyboard: Enter filters the list", filtered and count == 1, (browser.url(), count))
    browser.open(home)
    picked = tab_to(browser, lambda at: at[1] == "a") and (browser.press(SPACE) or True)
    picked = picked and tab_to(browser, lambda at: at[1] == "b") and (browser.press(SPACE) or True)
    check("by keyboard: A and B are chosen", bool(picked), focused(browser))
    reached = tab_to(browser, lambda at: at[0] == "BUTTON" and at[3].startswith("Compare"))
    browser.press(ENTER)
    compared = wait_for(lambda: "/compare?" in browser.url())
    check("by keyboard: Enter compares them", reached is not None and compared, browser.url())
    letters = browser.script("return [...document.querySelectorAll('.letter')].map(e => e.textContent).join('')")
    check("compared: every chart says of which side it is", letters and letters == "AB" * (len(letters) // 2), letters)
    browser.open(home)
    link = tab_to(browser, lambda at: at[0] == "A" and at[3].startswith("A sweep"))
    browser.press(ENTER)
    opened = wait_for(lambda: "/result?" in browser.url())
    check("by keyboard: a result is opened", link is not None and opened, browser.url())
    link = tab_to(browser, lambda at: at[0] == "A" and at[3].startswith("r1"))
    browser.press(ENTER)
    opened = wait_for(lambda: "/run?" in browser.url())
    check("by keyboard: a run is opened", link is not None and opened, browser.url())
    chart = tab_to(browser, lambda at: at[0] == "svg")
    text = "return document.querySelector('.readout')?.textContent ?? ''"
    # A key that comes before the page's script is ready does nothing: a person presses it again.
    read = wait_for(lambda: browser.press(LEFT) or " s" in browser.script(text))
    check("by keyboard: values of a chart are read", chart is not None and read, (chart, browser.script(text)))


def put(file, value):
    """Whole at every moment: pages read it meanwhile."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(value))
    os.replace(new, file)


def under_way(browser, home, result):
    """A result as it stands while it is running, then its end."""
    file = result / "result.json"
    manifest = json.loads(file.read_text())
    put(file, {**manifest, "status": "running", "planned": 9})
    browser.open(f"{home}result?of=two")
    text = "return document.getElementById('live')?.textContent ?? ''"
    check("under way: how many runs are made is shown", "6 of 9 runs made" in browser.script(text), browser.script(text))
    put(file, {**manifest, "status": "running", "planned": 8})
    check("under way: it is shown anew", wait_for(lambda: "6 of 8 runs made" in browser.script(text)), browser.script(text))
    tab_to(browser, lambda at: at[3] == "Pause")
    browser.press(ENTER)
    put(file, {**manifest, "status": "running", "planned": 7})
    time.sleep(3)
    check("under way: a person pauses it by keyboard", "6 of 8" in browser.script(text), browser.script(text))
    browser.press(ENTER)
    check("under way: and lets it go on", wait_for(lambda: "6 of 7" in browser.script(text)), browser.script(text))
    put(file, manifest)
    check("under way: at its end the page is as any other", wait_for(lambda: browser.script(text) == ""), browser.script(text))
    check("under way: the browser has nothing to complain of", not (said := browser.complaints("status of 410")), said)


def segment(port, from_client, seq, ack, flags, payload):
    """An IPv4 TCP packet without its payload."""
    client, server = (bytes([10, 0, 0, 1]), port), (bytes([10, 0, 0, 2]), 80)
    (source, sport), (destination, dport) = (client, server) if from_client else (server, client)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40 + payload, 0, 0, 64, 6, 0) + source + destination
    return ip + struct.pack("!HHIIBBHHH", sport, dport, seq, ack, 0x50, flags, 60000, 0, 0)


def write_capture(file):
    """Four connections that send for some seconds; each loses every 97th segment, and repairs it."""
    syn, ack = 0x02, 0x10
    packets = []
    for flow in range(4):
        port, at_us = 40000 + flow, flow * 10_000
        packets += [(at_us, segment(port, True, 0, 0, syn, 0)), (at_us + 20_000, segment(port, False, 0, 1, syn | ack, 0))]
        for n in range(600):
            at_us += 5_000
            seq = 1 + n * 1000
            packets.append((at_us, segment(port, True, seq, 1, ack, 1000)))
            if n % 97 == 96:
                packets.append((at_us + 300_000, segment(port, True, seq, 1, ack, 1000)))
            packets.append((at_us + 20_000, segment(port, False, 1, seq + 1000, ack, 0)))
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 96, 101))
        for at_us, packet in sorted(packets):
            length = struct.unpack("!H", packet[2:4])[0]
            out.write(struct.pack("<IIII", *divmod(1_700_000_000_000_000 + at_us, 1_000_000), len(packet), length) + packet)


def write_files(place):
    """Pages that commands write: of a capture, of causes, of two results beside each other."""
    write_capture(place / "a.pcap")
    looks = gzip.decompress((ROOT / "crates/why/tests/looks/tuning.looks.gz").read_bytes())
    (place / "a.looks").write_bytes(b"\n".join(looks.splitlines()[:3]))
    commands = {
        "analysis": ["analyze", "a.pcap", "--html"],
        "causes-capture": ["why", "a.pcap", "--page"],
        "causes": ["why", "a.looks", "--rate", "50Mbit", "--page"],
        "report": ["report", "runs/one", "runs/two", "-o"],
        "wide": ["report", "columns", "-o"],
    }
    for name, words in commands.items():
        subprocess.run([PROGRAM, *words, f"{name}.html"], cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {name: f"file://{place}/{name}.html" for name in commands}


def main():
    if not shutil.which("chromedriver"):
        raise SystemExit("chromedriver is missing: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        (place / "spec.toml").write_text(SPEC)
        (place / "wide.toml").write_text(WIDE)
        lab = [PROGRAM, "lab", "run", "wide.toml", "--backend", "sim", "-o", "columns"]
        subprocess.run(lab, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, cc in (("one", "reno"), ("two", "cubic")):
            lab = [PROGRAM, "lab", "run", "spec.toml", "--backend", "sim", "-o", f"runs/{name}", "--set", f"flows.measured.cc={cc}"]
            subprocess.run(lab, cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        command = [PROGRAM, "lab", "serve", str(place / "runs"), "--listen", "127.0.0.1:0"]
        with (
            running(*command, stdout=subprocess.PIPE, text=True) as serve,
            browsing(place / "profile") as browser,
        ):
            home = serve.stdout.readline().strip()
            pages = {
                "list": home,
                "result": f"{home}result?of=one",
                "run": f"{home}run?of=one&run=rate%3D20Mbit/repeat%3D1",
                "comparison": f"{home}compare?a=one&b=two",
                "refusal": f"{home}result?of=none",
                **write_files(place),
            }
            for size, (width, height) in SIZES.items():
                browser.size(width, height)
                for page, url in pages.items():
                    expected = ["status of 404"] if page == "refusal" else []
                    headings = 2 if page == "report" else 1
                    look(browser, f"{page}, {size}", url, f"{page}-{size}", *expected, headings=headings)
                by_keyboard(browser, home)
            under_way(browser, home, place / "runs/two")
    print(f"{len(findings)} findings", file=sys.stderr)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
