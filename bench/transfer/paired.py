#!/usr/bin/env python3
"""Two builds of longfat's transfers in turn, on the loopback of a namespace: one stream up, one down, whole transfers a second.

    cargo build --release -p longfat-transfer --example pace        in both trees
    bench/transfer/paired.py --other OTHER/target/release/examples/pace
    bench/transfer/paired.py --other … --rounds 6 --seconds 2       as it is by default

What is compared is the ratio within a round, whose order turns. Where the other tree has no such example, give it this one's,
without the options that it does not know. Appends to results/DATE/raw.jsonl. Needs root and iproute2.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import frame


def paced(namespace, program, seconds):
    command = ["ip", "netns", "exec", namespace, program, str(seconds)]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {name: float(value) for name, value in map(str.split, lines)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--this", default=frame.ROOT / "target/release/examples/pace")
    parser.add_argument("--other", required=True)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2)
    args = parser.parse_args()
    namespace, rounds = f"lfbench{os.getpid()}", []
    frame.run("ip", "netns", "add", namespace)
    try:
        frame.run("ip", "-n", namespace, "link", "set", "lo", "up")
        for turn in range(args.rounds):
            order = ("this", "other") if turn % 2 else ("other", "this")
            rounds.append({which: paced(namespace, getattr(args, which), args.seconds) for which in order})
    finally:
        frame.run("ip", "netns", "del", namespace)
    figures = {}
    for name in rounds[0]["this"]:
        ratios = [row["this"][name] / row["other"][name] for row in rounds]
        figures[name] = {which: statistics.median(row[which][name] for row in rounds) for which in ("this", "other")}
        figures[name]["this_over_other"] = [min(ratios), statistics.median(ratios), max(ratios)]
    frame.Results(__file__).add({"load": os.getloadavg()[0], "seconds": args.seconds, "figures": figures, "rounds": rounds})
    print(json.dumps(figures, indent=1))


main()
