#!/usr/bin/env python3
"""Builds of the relay held against each other: short turns, one after the other, many times.

    bench/relay/paired.py old=/tmp/old/relay new=target/release/examples/relay
    bench/relay/paired.py --load "8 flows" --packets mtu --turns 20 old=PATH new=PATH
    bench/relay/paired.py --way "longfat watch" forwarding= watch=target/release/examples/relay
    bench/relay/paired.py --way "longfat adopt" --first "1 flow" forwarding= watch=target/release/examples/relay

Every build runs all the time between hosts of its own and is loaded in turn, in an order of its own each time. So
whatever else the machine does for longer than a turn falls on all alike: only the ratio to the first build within a
turn counts. Told are the median of these ratios, its 95 % interval (bootstrap) and their quartiles. The builds are
those of the crate's example (`cargo build --release -p longfat-relay --example relay`); with --programs of longfat
itself, which confines itself when root starts it. Raw figures go to standard output as lines of JSON, or --output.
A build without a path is no relay at all: packets are forwarded. Needs what compare.py needs for these loads.

Exit codes: 0 all was measured; 1 some measurement failed; 2 usage.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import sys

import compare

LOADS = ("connections", "1 flow", "8 flows")
COLUMNS = ("conn/s", "conn p50 us", "conn p99 us", "CPU us/conn", "Gbit/s", "CPU s/GB", "machine s/GB")
RESAMPLES = 2000


def builds(words):
    found = dict(word.split("=", 1) for word in words if "=" in word)
    if len(found) < 2 or len(found) != len(words):
        sys.exit("give at least two builds as NAME=PATH, each with a name of its own")
    if missing := [path for path in found.values() if path and not os.access(path, os.X_OK)]:
        sys.exit(f"{missing[0]}: no program; build it with 'cargo build --release -p longfat-relay --example relay'")
    return {name: path and pathlib.Path(path).resolve() for name, path in found.items()}


def started(stack, options, number, path):
    """Hosts and a running relay of one build."""
    hosts = stack.enter_context(compare.Hosts(options.packets, number))
    stack.enter_context(compare.servers(hosts))
    own = argparse.Namespace(threads=options.threads, program=path, program_of_example=path,
                             example=not options.programs)
    way = compare.RELAYS[options.way] if path else None
    return hosts, stack.enter_context(compare.Relay(hosts, way, own))


def turns(options, running, out):
    rows, failed = [], 0
    for turn in range(options.turns):
        for name in random.Random(turn).sample(list(running), len(running)):
            try:
                figures = compare.measure_running(*running[name], options.load, options.seconds)
            except Exception as error:
                figures, failed = {"failed": compare.reason(error)}, failed + 1
            row = {"turn": turn, "build": name, "load": options.load, "packets": options.packets, **figures}
            print(json.dumps(row), file=out, flush=True)
            rows.append(row)
    return rows, failed


def ratios(rows, name, first, column):
    """Of one build to the first, turn by turn."""
    of = lambda build: {row["turn"]: row[column] for row in rows if row["build"] == build and column in row}
    own, other = of(name), of(first)
    return [own[turn] / other[turn] for turn in own if other.get(turn)]


def interval(values):
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-1 - RESAMPLES // 40]


def told(rows, names):
    first, *others = names
    for name in others:
        for column in COLUMNS:
            values = ratios(rows, name, first, column)
            if len(values) < 2:
                continue
            low, high = interval(values)
            quarter, _, three = statistics.quantiles(values, n=4)
            yield (f"{name}/{first} {column}: {statistics.median(values):.3f} ({low:.3f} to {high:.3f}; "
                   f"quartiles {quarter:.3f}, {three:.3f}; {len(values)} turns)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs="+", metavar="NAME=PATH", help="the first is what the others are held against")
    parser.add_argument("--load", choices=LOADS, default="connections")
    parser.add_argument("--first", choices=LOADS, help="a load that each build carries once before all turns")
    parser.add_argument("--packets", choices=["gso", "mtu"], default="gso")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=1, help="of each turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--way", choices=[name for name in compare.RELAYS if name.startswith("longfat")], default="longfat")
    parser.add_argument("--programs", action="store_true", help="the builds are longfat itself")
    parser.add_argument("--output", type=pathlib.Path, help="where raw figures go")
    options = parser.parse_args()
    found = builds(options.builds)
    compare.raise_descriptors()
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(options.output.open("a")) if options.output else sys.stdout
        running = {name: started(stack, options, number, path) for number, (name, path) in enumerate(found.items())}
        if options.first:
            for hosts, relay in running.values():
                compare.measure_running(hosts, relay, options.first, options.seconds)
        rows, failed = turns(options, running, out)
        for line in told(rows, list(found)):
            print(f"# {line}", file=out)
            if options.output:
                print(line)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
