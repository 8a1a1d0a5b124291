#!/usr/bin/env python3
"""What tracing every ACK costs a single flow: throughput with and without `longfat tcb trace`, side by side.

    bench/tcb/trace.py --rounds 20 --seconds 2 --program target/release/longfat

One reno flow at full speed over loopback in a network namespace of its own; each round runs with and without, in
turned order. Appends to results/DATE/trace.jsonl. Needs root, iproute2.
"""

import json
import signal
import statistics
import subprocess
import tempfile
import time

import frame

PORT = 5201
AIM = 0.03
# The control connection goes to the same port, and says two things a second.
FLOW = f"cc reno and dport {PORT}"


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
    parser = frame.parser(__doc__, rounds=20)
    parser.add_argument("--seconds", type=int, default=2)
    args = parser.parse_args()
    frame.enter_own_namespace()
    server = subprocess.Popen([args.program, "transfer", "serve", "--trusted"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    costs = [1 - one["ratio"] for one in rounds]
    frame.keep("trace", args.program, {
        "median_bps": {which: statistics.median(one[f"{which}_bps"] for one in rounds) for which in ("without", "with")},
        "cost": frame.spread(costs),
        "rounds": rounds,
    })
    print(frame.verdict("throughput lost to tracing", costs, AIM))


main()
