#!/usr/bin/env python3
"""What watching costs: processor time of `longfat why` over very many connections, and a stream's rate while it is watched.

    bench/why/cost.py                      10,000 connections for 20 s, a stream in turn alone and watched, three times

Prints one JSON object. Needs root (a network namespace of its own).
"""

import argparse
import ctypes
import json
import os
import pathlib
import resource
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
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


def watched(program, words):
    """Processor time and wall time of one watch."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([program, "why", *words, "--json"], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    count = sum(cause["connections"] for cause in json.loads(done.stdout)["causes"])
    return {"cpu_s": round(spent, 3), "wall_s": round(time.monotonic() - start, 3), "connections": count}


class Stream:
    """A stream over the loopback, and how much of it came."""

    def __init__(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.near = socket.create_connection(listener.getsockname())
        self.far, _ = listener.accept()
        self.port, self.got = listener.getsockname()[1], 0
        threading.Thread(target=self.send, daemon=True).start()
        threading.Thread(target=self.receive, daemon=True).start()

    def send(self):
        while True:
            self.near.sendall(BLOCK)

    def receive(self):
        room = bytearray(1 << 18)
        while True:
            self.got += self.far.recv_into(room)

    def rate_bps(self, seconds):
        start, before = time.monotonic(), self.got
        time.sleep(seconds)
        return 8 * (self.got - before) / (time.monotonic() - start)


def one_stream(program, rounds, seconds):
    stream, rates = Stream(), {"alone": [], "watched": []}
    stream.rate_bps(1)
    for _ in range(rounds):
        rates["alone"].append(stream.rate_bps(seconds))
        watch = subprocess.Popen([program, "why", f"port {stream.port}", "--for", f"{seconds + 2}s"], stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        rates["watched"].append(stream.rate_bps(seconds))
        watch.wait()
    return {name: [round(rate / 1e6) for rate in found] for name, found in rates.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    args = parser.parse_args()
    own_network()
    stream = one_stream(args.program, args.rounds, 4)
    ends = connections(args.connections // 2)
    short = watched(args.program, ["--for", "1s"])
    long = watched(args.program, ["--for", f"{args.seconds}s"])
    more = (long["cpu_s"] - short["cpu_s"]) / (long["wall_s"] - short["wall_s"])
    json.dump({"ends": len(ends), "one_second": short, "long": long, "processor_share_going_on": round(more, 4),
               "stream_mbps": stream}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
