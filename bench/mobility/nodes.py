#!/usr/bin/env python3
"""How long one announcement takes to reach 1,000 nodes, from its sending until each has found it to be news.

    bench/mobility/nodes.py --hosts 20 --each 50 --rounds 20

The nodes are followers' sockets in network namespaces on one switch, all on this machine: its processors do the work of
all of them. Appends to results/DATE/nodes.jsonl. Needs root, iproute2.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--program", default=str(ROOT / "target/release/examples/nodes"))
    args = parser.parse_args()
    command = [args.program, str(args.hosts), str(args.each), str(args.rounds)]
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    rounds = [json.loads(line) for line in output.splitlines()]
    result = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "load": os.getloadavg()[0],
        "median_us": {key: statistics.median(one["known_after_us"][key] for one in rounds) for key in ("p50", "p99", "last")},
        "not_told": sum(one["nodes"] - one["told"] for one in rounds),
        "rounds": rounds,
    }
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "nodes.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rounds"}, indent=1))


main()
