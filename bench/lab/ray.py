#!/usr/bin/env python3
"""A simulated sweep on a Ray of this host's own, beside local processes: speed-up, and what a run costs more.

    bench/lab/ray.py                       # 2 workers, 5 rounds
    bench/lab/ray.py --workers 8 --rounds 3

Two sweeps: few runs that take some seconds each, and many that take hardly any time. Each round makes both in every way
once, in turned order: one after the other (-j 1), side by side (-j N), on Ray (--on ray -j N). Times are of the whole
command, so those on Ray have starting and ending a cluster in them; a speed-up is the time one after the other over that of
the same round. Appends to results/DATE/raw.jsonl. Needs Ray for the python3 on PATH (target/python/bin has it after
'make test-python').
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import frame

SPEC = """
name = "bench"
warmup = "1s"
duration = "{duration}"
repeats = {repeats}
[hosts.a]
[hosts.b]
[links.path]
between = ["a", "b"]
rate = "100Mbit"
delay = "20ms"
queue = {{ limit = "500KB" }}
[flows.measured]
from = "a"
to = "b"
cc = "reno"
streams = 4
"""
SWEEPS = {"long": {"repeats": 12, "duration": "{long_s}s"}, "short": {"repeats": 200, "duration": "1s"}}


def timed(program, place, arguments):
    with tempfile.TemporaryDirectory(dir=place) as out:
        command = [program, "lab", "run", place / "spec.toml", "--backend", "sim", "-o", out, *arguments]
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.monotonic() - began


def sweep(program, place, ways, rounds, runs):
    times = []
    for turn in range(rounds):
        order = list(ways) if turn % 2 else list(reversed(ways))
        times.append({way: timed(program, place, ways[way]) for way in order})
        print(f"round {turn + 1} of {rounds}: {times[-1]}", file=sys.stderr)
    one, local, ray = ways
    spread = lambda values: {"median": statistics.median(values), "least": min(values), "greatest": max(values)}
    return {
        "runs": runs,
        "seconds": {way: spread([row[way] for row in times]) for way in ways},
        "speed_up": {way: spread([row[one] / row[way] for row in times]) for way in (local, ray)},
        "more_than_local_s": spread([row[ray] - row[local] for row in times]),
        "rounds": times,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--long-s", type=int, default=120, help="simulated seconds of a long run")
    parser.add_argument("--program", default=frame.LONGFAT)
    args = parser.parse_args()
    workers = ["-j", str(args.workers)]
    ways = {"one": ["-j", "1"], "local": workers, "ray": [*workers, "--on", "ray"]}
    result = {"load": os.getloadavg()[0], "workers": args.workers}
    for name, shape in SWEEPS.items():
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            duration = shape["duration"].format(long_s=args.long_s)
            (place / "spec.toml").write_text(SPEC.format(repeats=shape["repeats"], duration=duration))
            result[name] = sweep(args.program, place, ways, args.rounds, shape["repeats"])
    frame.Results(__file__).add(result)
    for name in SWEEPS:
        result[name].pop("rounds")
    print(json.dumps(result, indent=1))


main()
