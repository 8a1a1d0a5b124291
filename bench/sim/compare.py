#!/usr/bin/env python3
"""Packets per second of the simulator beside ns-3's, on the same dumbbell in one run.

    bench/sim/compare.py                        # 60 s of the dumbbell, 7 rounds
    bench/sim/compare.py --rounds 3 --seconds 20

Four Reno flows for as long as asked on 100 Mbit/s and 40 ms with a queue of one bandwidth-delay product: dumbbell.cc for
ns-3, crates/sim/examples/dumbbell.rs for ours. A packet is counted on each link it is sent over, in both. Each round runs
both once, in turned order; a rate is packets over the processor time of the process, a ratio that of two runs of the same
round. ns-3 is the wheel of its project on PyPI, installed into target/ns3; dumbbell.cc is compiled against it with
-O2. Appends to results/DATE/ns3.jsonl. Needs g++ and python3-venv.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NS3 = "ns3==3.44.post0"
MODULES = ["core", "network", "internet", "point-to-point", "applications"]


def build_ns3(place):
    """The ns-3 program and the environment it runs in."""
    python = place / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", NS3], check=True)
    where = subprocess.run(
        [python, "-c", "import importlib.util as u; print(u.find_spec('ns3').submodule_search_locations[0])"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    program = place / "dumbbell"
    libraries = [f"-lns{NS3.split('==')[1].split('.post')[0]}-{module}" for module in MODULES]
    compiled = ["g++", "-O2", "-std=c++23", f"-I{where}/include", HERE / "dumbbell.cc", "-o", program]
    subprocess.run([*compiled, f"-L{where}/lib64", f"-Wl,-rpath,{where}/lib64", *libraries], check=True)
    return program


def build_ours():
    subprocess.run(
        ["cargo", "build", "--release", "--locked", "--quiet", "-p", "longfat-sim", "--example", "dumbbell"],
        check=True,
        cwd=ROOT,
    )
    return ROOT / "target/release/examples/dumbbell"


def run(command):
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    row = json.loads(process.stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return row | {"cpu_s": round(cpu_s, 3), "packets_per_s": round(row["packets"] / cpu_s)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=60)
    args = parser.parse_args()
    commands = {
        "longfat": [build_ours(), "--json", args.seconds],
        NS3: [build_ns3(ROOT / "target/ns3"), args.seconds],
    }
    rounds = []
    for turn in range(args.rounds):
        order = list(commands) if turn % 2 else list(reversed(commands))
        rounds.append({name: run(commands[name]) for name in order})
        print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
    ratios = [row["longfat"]["packets_per_s"] / row[NS3]["packets_per_s"] for row in rounds]
    million = lambda name: round(statistics.median(row[name]["packets_per_s"] for row in rounds) / 1e6, 3)
    result = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "load": os.getloadavg()[0],
        "median_million_packets_per_s": {name: million(name) for name in commands},
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)},
        "rounds": rounds,
    }
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "ns3.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result | {"rounds": len(rounds)}, indent=1))


main()
