#!/usr/bin/env python3
"""Time of `longfat tcb list` beside `ss -tinm` over the same connections.

    bench/tcb/list.py --connections 10000 --rounds 21 --program target/release/longfat

Makes the connections on loopback in a network namespace of its own, then runs every variant once per round, in turned
order; only ratios within a round are compared. Appends to results/DATE/list.jsonl. Needs root, iproute2.
"""

import resource
import socket
import statistics
import subprocess
import time

import frame

NO_PROCESS = "src,dst,state,cc,cwnd,ssthresh,rtt,rttvar,minrtt,rto,flight,retrans,delivery,pacing,rwnd,rcvwnd,limit"

AIM = 0.25


def connect(sockets):
    """Both ends of sockets/2 connections."""
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
    parser = frame.parser(__doc__, rounds=21)
    parser.add_argument("--connections", type=int, default=10000)
    args = parser.parse_args()
    frame.enter_own_namespace()
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
    pairs = {
        "ratio_to_ss": ("longfat tcb list, without processes", "ss -tinm"),
        "ratio_to_ss_with_processes": ("longfat tcb list", "ss -tinmp"),
    }
    ratios = {key: [ours / theirs for ours, theirs in zip(times[own], times[other])]
              for key, (own, other) in pairs.items()}
    frame.keep("list", args.program, {
        "connections": len(held) - 1,
        "median_ms": median,
        **{key: frame.spread(values) for key, values in ratios.items()},
        "ms": {name: [round(value, 1) for value in values] for name, values in times.items()},
    })
    for key, (own, other) in pairs.items():
        print(frame.verdict(f"{own} / {other}", ratios[key], AIM))

main()
