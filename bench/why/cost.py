#!/usr/bin/env python3
"""What watching costs: processor time of `longfat why` over very many connections, and a stream's rate while it is watched.

    bench/why/cost.py            10,000 connections for a minute; a stream alone and watched, 20 pairs in random order

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


def watched_bps(stream, program, seconds):
    words = [program, "why", f"port {stream.port}", "--for", "1h", "--json"]
    watch = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    # Its first search, and the rate that it leaves, are over.
    stream.rate_bps(0.7)
    before, start = ran_s(watch.pid), time.monotonic()
    rate = stream.rate_bps(seconds)
    share = (ran_s(watch.pid) - before) / (time.monotonic() - start)
    watch.send_signal(signal.SIGINT)
    watch.wait()
    return rate, share


def one_stream(program, pairs, seconds):
    """Rates alone and watched next to each other, in random order; what watching takes of it, with its interval of 95 %."""
    stream, rng, lost, rates, shares = Stream(), random.Random(1), [], [], []
    stream.rate_bps(2)
    for _ in range(pairs):
        pair = {}
        for name in rng.sample(["alone", "watched"], 2):
            stream.rate_bps(0.3)
            if name == "watched":
                pair[name], share = watched_bps(stream, program, seconds)
                shares.append(share)
            else:
                pair[name] = stream.rate_bps(seconds)
        rates.append({name: round(rate / 1e6) for name, rate in pair.items()})
        lost.append(1 - pair["watched"] / pair["alone"])
    stream.end()
    mean, error = statistics.mean(lost), statistics.stdev(lost) / math.sqrt(pairs)
    # Student's t of 97.5 % for 15 pairs and more is 2.15 at the most.
    return {"lost_share": round(mean, 4), "lost_share_95": [round(mean - 2.15 * error, 4), round(mean + 2.15 * error, 4)],
            "processor_share": round(statistics.mean(shares), 5), "pairs_mbps": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--settle", type=float, default=12, help="seconds in which it finds them")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--note", default="", help="kept with the result")
    parser.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    args = parser.parse_args()
    if args.pairs < 15:
        raise SystemExit("--pairs has to be 15 or more: the interval is that of so many")
    own_network()
    stream = one_stream(args.program, args.pairs, 1.0)
    ends = connections(args.connections // 2)
    found = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "note": args.note, "ends": len(ends),
             "many": many(args.program, args.settle, args.seconds), "one": stream}
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "cost.jsonl", "a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
