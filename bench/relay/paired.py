#!/usr/bin/env python3
"""Builds of the relay held against each other: short turns, one after the other, many times.

    bench/relay/paired.py old=/tmp/old/relay new=target/release/examples/relay
    bench/relay/paired.py --load "8 flows" --packets mtu --turns 20 old=PATH new=PATH
    bench/relay/paired.py --way "longfat watch" forwarding= watch=target/release/examples/relay
    bench/relay/paired.py --way "longfat adopt" --first "1 flow" forwarding= watch=target/release/examples/relay
    bench/relay/paired.py --way "longfat adopt" --load mixed --delay 40 "haproxy=@HAProxy splice" forwarding= adopt=PATH
    bench/relay/paired.py --way "longfat adopt" --load "1 flow" early=PATH "end-to-end=@longfat acknowledge"

Every build runs all the time between hosts of its own and is loaded in turn, in an order of its own each time. So
whatever else the machine does for longer than a turn falls on all alike: only the ratio to the first build within a
turn counts. Told are the median of these ratios, its 95 % interval (bootstrap) and their quartiles. The builds are
those of the crate's example (`cargo build --release -p longfat-relay --example relay`); with --programs of longfat
itself, which confines itself when root starts it. Raw figures go to standard output as lines of JSON, or --output.
A build without a path is no relay at all: packets are forwarded. In place of a path @NAME is another relay that
compare.py knows; ours is the first build that has a path. Needs what compare.py needs for these loads.

8 clients  They open connections at once, so that the processors are busy; with "connections" one client waits for each.
mixed      190 connections of 1 to 99 KB and 10 of 10 to 12 MB, 16 at once, from the server. With --delay the path to
           it has that round trip and 1 Gbit/s (`longfat link drive` of target/release). A turn is one of these,
           whatever --seconds says. Times are from connect() to the last byte.
released   A flow sends until the relay has stepped into it, pauses until the relay has left it (--way "longfat release"),
           and then sends 900 MB, whose time is told.

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

LOADS = ("connections", "8 clients", "1 flow", "8 flows", "mixed", "released")
COLUMNS = ("conn/s", "conn p50 us", "conn p99 us", "CPU us/conn", "machine us/conn", "Gbit/s", "CPU s/GB", "machine s/GB", "min/max", "small p50 ms",
           "small p99 ms", "large p50 ms", "large max ms", "transfer ms")
PEER = "@"
RESAMPLES = 2000


def builds(words):
    found = dict(word.split("=", 1) for word in words if "=" in word)
    if len(found) < 2 or len(found) != len(words):
        sys.exit("give at least two builds as NAME=PATH, each with a name of its own")
    peers = [path[1:] for path in found.values() if path.startswith(PEER)]
    if unknown := [peer for peer in peers if peer not in compare.RELAYS]:
        sys.exit(f"@{unknown[0]}: no such relay; there are {', '.join(compare.RELAYS)}")
    own = [path for path in found.values() if path and not path.startswith(PEER)]
    if missing := [path for path in own if not os.access(path, os.X_OK)]:
        sys.exit(f"{missing[0]}: no program; build it with 'cargo build --release -p longfat-relay --example relay'")
    return {name: str(pathlib.Path(path).resolve()) if path in own else path for name, path in found.items()}


def way_of(path, way):
    """How the relay of a build works: as compare.py names it."""
    if path.startswith(PEER):
        return compare.RELAYS[path[1:]]
    return compare.RELAYS[way] if path else None


def program_of(path, builds):
    """What runs a build, if it is ours."""
    return path if not path.startswith(PEER) else next((own for own in builds.values() if own and own[0] != PEER), None)


def started(stack, options, number, path, builds):
    """Hosts and a running relay of one build."""
    hosts = stack.enter_context(compare.Hosts(options.packets, number, options.delay))
    stack.enter_context(compare.servers(hosts))
    program = program_of(path, builds)
    own = argparse.Namespace(threads=options.threads, program=program, program_of_example=program,
                             example=not options.programs)
    return hosts, stack.enter_context(compare.Relay(hosts, way_of(path, options.way), own))


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
    parser.add_argument("--delay", type=float, default=0, metavar="MS", help="round trip between relay and server")
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
        running = {name: started(stack, options, number, path, found)
                   for number, (name, path) in enumerate(found.items())}
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
