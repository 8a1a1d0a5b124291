#!/usr/bin/env python3
"""Real clients and servers through the relay, beside plain forwarding: what differs.

    tests/real-clients/run.py                  # all of it: IPv4 and IPv6, every way of accepting, queues kept short
    tests/real-clients/run.py --only git

Three network namespaces, made here: client - relay - server. Each trial (trials.py) is an ordinary client program against
an ordinary server program (servers.py). All of them run with plain forwarding first, then in each mode of the relay. What
programs saw is compared: bytes by digest, errors and exit codes, the client's address as the server sees it, TOS and TTL.
Needs root, iproute2, nftables and the Debian packages of scripts/setup-clients. The table is written to
tests/real-clients/results/DATE.md. Exit status 1 when a trial differs, or fails with plain forwarding.
"""

import argparse
import datetime
import json
import pathlib
import signal
import subprocess
import sys
import time

from hosts import SERVER, Hosts, Relay
from servers import SERVERS
from trials import TRIALS

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RELAY = ROOT / "target/release/examples/relay"
MODES = {
    "early": ["early"], "after-server": ["after-server"], "early, queue target": ["early", "20ms"],
    "after-server, queue target": ["after-server", "20ms"],
    "end-to-end": ["end-to-end"],
    "acknowledged end to end": ["adopt", "acknowledge = 'end-to-end'"],
    "adopted": ["adopt", "adopt_after = '20KB'"],
    "adopted, left in pauses": ["adopt", "adopt_after = '20KB'", "release_after = '100ms'"],
}
# Modes that let handshakes pass step into connections where that can be done, and where it is worth it. So a trial may
# go without; of a mode's trials at least this share may not.
STEPPED_INTO = 0.5
# What the relay's page says differs, and why.
STATED = {
    ("curl refused", "early"): "the connection is accepted before the server refuses, then reset",
}


def attempt(trial, hosts, address):
    try:
        return trial(hosts, address)
    except (AssertionError, subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}


def differences(plain, relayed):
    names = [name for name in plain | relayed if plain.get(name) != relayed.get(name)]
    return [f"{name}: {plain.get(name)} without, {relayed.get(name)} with the relay" for name in names]


def judged(name, mode, plain, relayed):
    """How it is to be taken, and what differs."""
    found = "; ".join(differences(plain, relayed))
    if failed := plain.get("failed"):
        return "NOT TRIED", f"with plain forwarding: {failed}"
    if not found:
        return "same", ""
    if reason := STATED.get((name, mode.split(",")[0])):
        return "stated", f"{found} ({reason})"
    return "DIFFERS", found


class Table:
    def __init__(self):
        self.rows = []

    def add(self, mode, name, family, verdict, what, seconds):
        self.rows.append((mode, name, family, verdict, what.replace("|", "/"), f"{seconds:.1f}"))
        print(f"{mode:26} {name:18} {family}  {verdict:9} {seconds:5.1f} s  {what}", flush=True)

    def bad(self):
        return sum(row[3] in ("DIFFERS", "NOT TRIED") for row in self.rows)

    def text(self):
        head = [f"# {datetime.date.today().isoformat()}", "", "| mode | trial | IP | beside plain forwarding | what | s |",
                "|---|---|---|---|---|---|"]
        return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in self.rows)]) + "\n"


def chosen(options):
    named = [name for name in TRIALS if not options.only or name.startswith(tuple(options.only))]
    return [(name, family, address) for name in named for family, address in SERVER.items()]


def plain_forwarding(hosts, options):
    seen = {}
    for name, family, address in chosen(options):
        begun = time.monotonic()
        seen[name, family] = attempt(TRIALS[name], hosts, address)
        print(f"{'without':26} {name:18} {family}  {'':9} {time.monotonic() - begun:5.1f} s  {json.dumps(seen[name, family])}",
              flush=True)
    return seen


def through_the_relay(hosts, mode, options, plain, table):
    relay = Relay(hosts, options.relay, MODES[mode])
    may_pass = MODES[mode][0] in ("end-to-end", "adopt")
    trials, passed = chosen(options), 0
    for name, family, address in trials:
        begun, carried = time.monotonic(), relay.carried[address]
        relayed = attempt(TRIALS[name], hosts, address)
        verdict, what = judged(name, mode, plain[name, family], relayed)
        try:
            relay.wait_for_more_than(carried, address, within_s=1 if may_pass else 10)
        except AssertionError as error:
            if may_pass:
                passed, what = passed + 1, what or "passed"
            else:
                verdict, what = "DIFFERS", str(error)
        table.add(mode, name, family, verdict, what, time.monotonic() - begun)
    if not options.only:
        least = len(trials) * STEPPED_INTO
        assert len(trials) - passed >= least, f"the relay stepped into connections of {len(trials) - passed} trials only"
    assert relay.process.poll() is None, "the relay ended by itself"
    hosts.stop(relay.process)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="trials whose name begins so; several times for several")
    parser.add_argument("--mode", action="append", choices=list(MODES))
    parser.add_argument("--relay", default=RELAY, type=pathlib.Path, help="the program (the crate's example)")
    parser.add_argument("--dry", action="store_true", help="keep no table")
    options = parser.parse_args()
    # What was made is removed then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    table = Table()
    with Hosts() as hosts:
        for serve in SERVERS:
            serve(hosts)
        plain = plain_forwarding(hosts, options)
        for mode in options.mode or MODES:
            through_the_relay(hosts, mode, options, plain, table)
    if not options.dry and not options.only:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / f"{datetime.date.today().isoformat()}.md").write_text(table.text())
    print(f"{len(table.rows)} trials beside plain forwarding, {table.bad()} differ or were not tried")
    return 1 if table.bad() else 0


if __name__ == "__main__":
    sys.exit(main())
