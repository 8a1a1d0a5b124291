#!/usr/bin/env python3
"""What tracing every ACK costs a single flow: throughput with and without `longfat tcb trace`, side by side.

    bench/tcb/trace.py --rounds 5 --seconds 2 --program target/release/longfat

One reno flow at full speed over loopback in a network namespace of its own; each round runs with and without, in
turned order. Appends to results/DATE/trace.jsonl. Needs root, iproute2.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PORT = 5201
# The data connection has a port of its own; PORT is that of the control connection.
FLOW = f"cc reno and not sport {PORT} and not dport {PORT}"


def flow(program, seconds):
    output = subprocess.run(
        [program, "transfer", "send", f"127.0.0.1:{PORT}", "--cc", "reno", "--duration", f"{seconds}s", "--json"],
        stdout=subprocess.PIPE, check=True, text=True).stdout
    found = []
    for text in output.splitlines() if output.count("\n{") else [output]:
        collect(json.loads(text), found)
    return max(found)


def collect(value, found):
    """The greatest goodput_bps anywhere: the flow's."""
    if isinstance(value, dict):
        found += [v for k, v in value.items() if k == "goodput_bps" and isinstance(v, (int, float))]
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            collect(one, found)


def traced(program, seconds, directory):
    tracer = subprocess.Popen([program, "tcb", "trace", FLOW, "-o", directory],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(1)
    rate = flow(program, seconds)
    tracer.send_signal(signal.SIGINT)
    said = tracer.communicate()[0].strip()
    return rate, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    args = parser.parse_args()
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET; os.unshare came with Python 3.12
        raise SystemExit(f"a network namespace of its own: {os.strerror(ctypes.get_errno())}; run it with sudo")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    server = subprocess.Popen([args.program, "transfer", "serve"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1)
    rounds = []
    try:
        for number in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                one = {}
                for which in (["with", "without"] if number % 2 else ["without", "with"]):
                    if which == "with":
                        one["with_bps"], one["said"] = traced(args.program, args.seconds, folder + "/run")
                    else:
                        one["without_bps"] = flow(args.program, args.seconds)
                one["ratio"] = round(one["with_bps"] / one["without_bps"], 4)
                rounds.append(one)
    finally:
        server.terminate()
    result = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "program": os.path.relpath(args.program, ROOT),
        "load": os.getloadavg()[0],
        "median_ratio": statistics.median(one["ratio"] for one in rounds),
        "rounds": rounds,
    }
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "trace.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result, indent=1))


main()
