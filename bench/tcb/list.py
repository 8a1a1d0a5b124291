#!/usr/bin/env python3
"""Time of `longfat tcb list` beside `ss -tinm` over the same connections.

    bench/tcb/list.py --connections 10000 --rounds 7 --program target/release/longfat

Makes the connections on loopback in a network namespace of its own, then runs every variant once per round, in turned
order; only ratios within a run are compared. Appends to results/DATE/list.jsonl. Needs root, iproute2.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import resource
import socket
import statistics
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NO_PROCESS = "src,dst,state,cc,cwnd,ssthresh,rtt,rttvar,minrtt,rto,flight,retrans,delivery,pacing,rwnd,rcvwnd,limit"


def connect(sockets):
    """Both ends of sockets/2 connections; several listeners, so that ports do not run out."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, sockets + 100), hard))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    held = [listener]
    for _ in range(sockets // 2):
        held.append(socket.create_connection(listener.getsockname()))
        held.append(listener.accept()[0])
    return held


def milliseconds(command):
    start = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - start) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    args = parser.parse_args()
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET; os.unshare came with Python 3.12
        raise SystemExit(f"a network namespace of its own: {os.strerror(ctypes.get_errno())}; run it with sudo")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    held = connect(args.connections)
    variants = {
        "ss -tinm": ["ss", "-tinm"],
        "longfat tcb list, without processes": [args.program, "tcb", "list", "--columns", NO_PROCESS],
        "ss -tinmp": ["ss", "-tinmp"],
        "longfat tcb list": [args.program, "tcb", "list"],
    }
    times = {name: [] for name in variants}
    for round_number in range(args.rounds):
        order = list(variants)[round_number % 4:] + list(variants)[:round_number % 4]
        for name in order:
            times[name].append(milliseconds(variants[name]))
    median = {name: round(statistics.median(values), 1) for name, values in times.items()}
    result = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "connections": len(held) - 1,
        "program": os.path.relpath(args.program, ROOT),
        "load": os.getloadavg()[0],
        "median_ms": median,
        "ratio_to_ss": round(median["longfat tcb list, without processes"] / median["ss -tinm"], 3),
        "ratio_to_ss_with_processes": round(median["longfat tcb list"] / median["ss -tinmp"], 3),
        "ms": {name: [round(value, 1) for value in values] for name, values in times.items()},
    }
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "list.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result, indent=1))


main()
