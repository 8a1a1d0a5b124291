#!/usr/bin/env python3
"""How long connections through `longfat relay` stand still while it is upgraded, or killed and started again.

    bench/relay/upgrade.py                          100 and 2000 connections, 15 upgrades and 15 kills each (3 minutes)
    bench/relay/upgrade.py --connections 500 --times 5

Three network namespaces in a row, made here: client, relay, server. A hundred connections each send 64 bytes, wait for their
echo, and rest 20 ms; the others are silent until the end, when each must answer, too. What is taken is each connection's longest time between two echoes within a second after the event began,
and within such seconds without an event. A kill is followed at once by a start, as a supervisor would. Every echo is compared;
a connection that ends, or says something else, is an error. Raw figures go to results/DATE-upgrade/raw.jsonl, a table to
summary.md beside it. $LONGFAT names the program. Needs root and iproute2.

Exit codes: 0 measured, nothing lost; 1 a connection was lost or said something else; 2 usage.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LONGFAT = os.environ.get("LONGFAT", str(HERE.parent.parent / "target/release/longfat"))
SERVER, PORT, REST_S, LOOK_S, TALKERS = "10.78.2.2", 5210, 0.02, 1.0, 100
KINDS = {"none": "no event", "upgrade": "upgrade", "kill": "kill -9, then start"}


def serve():
    """Echoes everything."""
    raise_limit()
    chosen = selectors.DefaultSelector()
    with socket.create_server((SERVER, PORT), backlog=4096) as listener:
        chosen.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in chosen.select():
                if key.fileobj is listener:
                    stream = listener.accept()[0]
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    chosen.register(stream, selectors.EVENT_READ)
                elif data := received(key.fileobj):
                    key.fileobj.sendall(data)
                else:
                    chosen.unregister(key.fileobj)
                    key.fileobj.close()


def received(stream):
    """What has come; nothing at the end. A client that is killed with its relay ends by a reset."""
    try:
        return stream.recv(4096)
    except ConnectionResetError:
        return b""


class Talk:
    """One connection: what it asked, when it was answered, and its longest wait since that was last taken."""

    def __init__(self, number):
        self.stream = socket.create_connection((SERVER, PORT), timeout=30)
        self.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream.setblocking(False)
        self.number, self.count, self.due, self.heard = number, 0, 0.0, b""
        self.answered, self.longest = time.monotonic(), 0.0

    def ask(self):
        self.asked = f"{self.number}:{self.count}".encode().ljust(64, b".")
        self.count, self.heard, self.due = self.count + 1, b"", None
        self.stream.send(self.asked)

    def hear(self, now):
        self.heard += (data := self.stream.recv(64))
        if not data or not self.asked.startswith(self.heard):
            raise SystemExit(f"connection {self.number}: {data!r} instead of {self.asked!r}")
        if len(self.heard) == 64:
            self.longest = max(self.longest, now - self.answered)
            self.answered, self.due = now, now + REST_S


def talk(connections):
    """For every line that comes: a second later, the longest waits of all connections."""
    raise_limit()
    chosen, every = selectors.DefaultSelector(), [Talk(number) for number in range(connections)]
    talks = every[:TALKERS]
    for one in talks:
        chosen.register(one.stream, selectors.EVENT_READ, one)
    chosen.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    until = None
    while True:
        now = time.monotonic()
        for one in talks:
            if one.due is not None and one.due <= now:
                one.ask()
        for key, _ in chosen.select(0.002):
            if key.data is None:
                if not sys.stdin.readline():
                    return all_answer(every[TALKERS:])
                until = time.monotonic() + LOOK_S
                for one in talks:
                    one.longest = 0.0
            else:
                key.data.hear(time.monotonic())
        if until is not None and time.monotonic() >= until:
            now, until = time.monotonic(), None
            # One that still waits has waited so long at least.
            print(json.dumps([max(one.longest, now - one.answered) for one in talks]), flush=True)


def all_answer(silent):
    for one in silent:
        one.ask()
        one.stream.setblocking(True)
        one.stream.settimeout(30)
        while one.due is None:
            one.hear(time.monotonic())


def raise_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def bed():
    names = [f"lfup{os.getpid()}-{role}" for role in ("client", "relay", "server")]
    client, relay, server = names
    ip = lambda *command: subprocess.run(["ip", *command], check=True)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for host, end, net in ((client, "lan", 1), (server, "wan", 2)):
            ip("link", "add", "eth0", "netns", host, "type", "veth", "peer", "name", end, "netns", relay)
            for name, device, address in ((host, "eth0", f"10.78.{net}.2/24"), (relay, end, f"10.78.{net}.1/24")):
                ip("-n", name, "address", "add", address, "dev", device)
                ip("-n", name, "link", "set", device, "up")
            ip("-n", host, "route", "add", "default", "via", f"10.78.{net}.1")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Service:
    """Relays, one after the other."""

    def __init__(self, host, directory, keep):
        self.host, self.file, self.socket = host, f"{directory}/relay.toml", f"{directory}/relay.sock"
        text = f"name = 'bench'\nkeep = {str(keep).lower()}\ncontrol = {{ socket = '{self.socket}' }}\n"
        pathlib.Path(self.file).write_text(text + "[intercept]\ninterfaces = 'lan'\nforwarding = true\n")
        self.process = self.start("run")
        self.wait()

    def start(self, verb):
        within = ["ip", "netns", "exec", self.host]
        return subprocess.Popen([*within, LONGFAT, "relay", verb, self.file], stderr=subprocess.DEVNULL)

    def wait(self):
        ask = [LONGFAT, "relay", "status", "--top", "0", "--json", "--socket", self.socket]
        deadline = time.monotonic() + 20
        while True:
            asked = subprocess.run(ask, capture_output=True, check=False)
            if asked.returncode == 0 and json.loads(asked.stdout)["pid"] == self.process.pid:
                return
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the relay does not answer ({self.process.poll()})")
            time.sleep(0.01)

    def disturb(self, kind):
        if kind == "kill":
            self.process.kill()
            self.process.wait()
            self.process = self.start("run")
        elif kind == "upgrade":
            last, self.process = self.process, self.start("upgrade")
            if last.wait(20) != 0:
                raise SystemExit("the relay that handed over ended with an error")
        if kind != "none":
            self.wait()


def measure(connections, times, keep):
    with bed() as (client, relay, server), tempfile.TemporaryDirectory() as directory:
        within = lambda host, *arguments: [
            "ip", "netns", "exec", host, sys.executable, str(HERE / "upgrade.py"), *arguments
        ]
        echo = subprocess.Popen(within(server, "--role", "server"))
        service = Service(relay, directory, keep)
        time.sleep(0.3)
        talker = subprocess.Popen(
            within(client, "--role", "client", "--connections", str(connections)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        try:
            if talker.stdout.readline() != "ready\n":
                raise SystemExit("clients cannot connect")
            time.sleep(0.5)
            for kind in ("none", "upgrade", *(["kill"] if keep else [])):
                for _ in range(times):
                    talker.stdin.write("\n")
                    talker.stdin.flush()
                    service.disturb(kind)
                    line = talker.stdout.readline()
                    if not line:
                        raise SystemExit(f"connections were lost ({kind})")
                    yield kind, [wait - REST_S for wait in json.loads(line)]
            talker.stdin.close()
            if talker.wait(60) != 0:
                raise SystemExit("a silent connection does not answer at the end")
        finally:
            for process in (talker, service.process, echo):
                process.terminate()
                process.wait()


def row(name, keep, kind, waits):
    waits = sorted(wait * 1000 for wait in waits)
    p99 = statistics.quantiles(waits, n=100)[98]
    keeper = "yes" if keep else "no"
    return f"| {name} | {keeper} | {KINDS[kind]} | {statistics.median(waits):.1f} | {p99:.1f} | {waits[-1]:.1f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, nargs="+", default=[100, 2000])
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--role", choices=("client", "server"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "server":
        return serve()
    if arguments.role == "client":
        return talk(arguments.connections[0])
    results = HERE / "results" / f"{datetime.date.today()}-upgrade"
    results.mkdir(parents=True, exist_ok=True)
    lines = ["| connections | keeper | event | median ms | p99 ms | longest ms |", "|---|---|---|---|---|---|"]
    with (results / "raw.jsonl").open("a") as raw:
        for connections in arguments.connections:
            for keep in (False, True):
                found = {}
                for kind, waits in measure(connections, arguments.times, keep):
                    found.setdefault(kind, []).extend(waits)
                    hundredths = statistics.quantiles(waits, n=100)
                    figures = {"median_s": hundredths[49], "p90_s": hundredths[89], "p99_s": hundredths[98], "longest_s": max(waits)}
                    record = {"connections": connections, "keep": keep, "kind": kind}
                    raw.write(json.dumps(record | {name: round(value, 5) for name, value in figures.items()}) + "\n")
                lines += [row(connections, keep, kind, waits) for kind, waits in found.items()]
                print(lines[-1], flush=True)
    version = subprocess.run([LONGFAT, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    head = f"{datetime.date.today()}, {version}, Linux {platform.release()}, {os.cpu_count()} cores. Per connection and event: the longest " \
        f"time between two echoes within a second, less the rest between them.\n\n"
    (results / "summary.md").write_text(head + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
