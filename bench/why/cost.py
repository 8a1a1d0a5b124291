#!/usr/bin/env python3
"""What watching costs: processor time of `longfat why` over very many connections, and a stream's rate while it is watched.

    bench/why/cost.py                10,000 connections for a minute; a stream alone and watched, 150 pairs in random order
    bench/why/cost.py --only-one     the stream only

Appends one JSON object to results/DATE/cost.jsonl, and prints it. Needs root (a network namespace of its own).
"""

import argparse
import ctypes
import datetime
import json
import math
import os
import pathlib
import random
import resource
import signal
import socket
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
CLONE_NEWNET = 0x40000000
BLOCK = b"\x07" * 65536


def own_network():
    # Python has os.unshare from 3.12 on.
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise SystemExit(f"a network namespace of its own: {os.strerror(ctypes.get_errno())}; run as root")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def connections(count):
    """Both ends of so many connections, open; each has said something."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count + 200, 2 * count + 200))
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    ends = []
    for _ in range(count):
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        near.sendall(b"x")
        ends += [near, far]
    return ends


def used_s(pid):
    """Processor time of a process so far, ended threads included."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def ran_s(pid):
    """Processor time of a process's living threads, finer than ticks."""
    return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def looks_of(path):
    """Connections in a file of looks, and the median of the looks at each."""
    counts = [json.loads(line)["looks"] for line in path.read_text().splitlines()]
    return len(counts), statistics.median(counts)


def many(program, settle_s, seconds):
    """Processor time of one watch of everything: until it has found all of them, and going on."""
    with tempfile.TemporaryDirectory() as folder:
        looks = pathlib.Path(folder) / "cost.looks"
        words = [program, "why", "--for", "1h", "--record", str(looks), "--json"]
        watch = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        time.sleep(settle_s)
        first, start = used_s(watch.pid), time.monotonic()
        time.sleep(seconds)
        more, elapsed = used_s(watch.pid) - first, time.monotonic() - start
        watch.send_signal(signal.SIGINT)
        if watch.wait():
            raise SystemExit(f"{words}: exit code {watch.returncode}")
        connections, each = looks_of(looks)
    return {"connections": connections, "looks_each": each, "first_s": round(settle_s, 1), "first_cpu_s": round(first, 2),
            "going_on_s": round(elapsed, 1), "going_on_cpu_s": round(more, 2), "processor_share_going_on": round(more / elapsed, 4)}


class Stream:
    """A stream over the loopback from a process of its own, and how much of it came."""

    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.sender = os.fork()
        # Each end on a processor of its own: where the scheduler puts them changes the rate more than a watch does.
        os.sched_setaffinity(0, {0 if self.sender == 0 else max(os.sched_getaffinity(0))})
        if self.sender == 0:
            with socket.create_connection(listener.getsockname()) as near:
                while True:
                    near.sendall(BLOCK)
        self.far, _ = listener.accept()
        self.room = bytearray(1 << 18)

    def rate_bps(self, seconds):
        start, got = time.monotonic(), 0
        while time.monotonic() - start < seconds:
            got += self.far.recv_into(self.room)
        return 8 * got / (time.monotonic() - start)

    def end(self):
        os.kill(self.sender, signal.SIGKILL)
        os.waitpid(self.sender, 0)
        os.sched_setaffinity(0, range(os.cpu_count()))


class Watch:
    """A watch of the stream that is stopped and goes on (SIGSTOP, SIGCONT): starting it is no part of what it costs."""

    def __init__(self, program, stream):
        self.child = subprocess.Popen(["taskset", "--cpu-list", f"0-{os.cpu_count() - 1}", program, "why", f"port {stream.port}", "--for", "1h", "--json"], stdout=subprocess.DEVNULL)

    def go_on(self, goes_on):
        self.child.send_signal(signal.SIGCONT if goes_on else signal.SIGSTOP)

    def end(self):
        self.go_on(True)
        self.child.send_signal(signal.SIGINT)
        self.child.wait()


def one_stream(program, pairs, seconds):
    """Rates alone and watched next to each other, in random order; what watching takes of it, with its interval of 95 %."""
    stream, rng, rates, shares = Stream(), random.Random(1), [], []
    watch = Watch(program, stream)
    # Its first search is over.
    stream.rate_bps(3)
    for _ in range(pairs):
        pair = {}
        for name in rng.sample(["alone", "watched"], 2):
            watch.go_on(name == "watched")
            stream.rate_bps(0.05)
            before, start = ran_s(watch.child.pid), time.monotonic()
            pair[name] = stream.rate_bps(seconds)
            if name == "watched":
                shares.append((ran_s(watch.child.pid) - before) / (time.monotonic() - start))
        rates.append({name: round(rate / 1e6) for name, rate in pair.items()})
    watch.end()
    stream.end()
    lost = [1 - pair["watched"] / pair["alone"] for pair in rates]
    mean, error = statistics.mean(lost), statistics.stdev(lost) / math.sqrt(pairs)
    # Student's t of 97.5 % for 15 pairs and more is 2.15 at the most.
    return {"lost_share": round(mean, 4), "lost_share_95": [round(mean - 2.15 * error, 4), round(mean + 2.15 * error, 4)],
            "lost_share_median": round(statistics.median(lost), 4), "pairs": pairs, "seconds_each": seconds,
            "processor_share": round(statistics.mean(shares), 5), "pairs_mbps": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--settle", type=float, default=12, help="seconds in which it finds them")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--pair-seconds", type=float, default=0.5, help="of each half of a pair")
    parser.add_argument("--only-one", action="store_true", help="the stream only")
    parser.add_argument("--note", default="", help="kept with the result")
    parser.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    args = parser.parse_args()
    if args.pairs < 15:
        raise SystemExit("--pairs has to be 15 or more: the interval is that of so many")
    own_network()
    found = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "note": args.note, "one": one_stream(args.program, args.pairs, args.pair_seconds)}
    if not args.only_one:
        ends = connections(args.connections // 2)
        found |= {"ends": len(ends), "many": many(args.program, args.settle, args.seconds)}
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "cost.jsonl", "a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
