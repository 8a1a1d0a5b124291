#!/usr/bin/env python3
"""Causes injected, and what `longfat why` says of them: the confusion table.

    bench/why/causes.py                              every cause on the paths the thresholds were found with
    bench/why/causes.py --paths aside --seeds 3      on the paths that were kept aside
    bench/why/causes.py --only random_loss policer   some of them
    bench/why/causes.py --record FILE                keep the looks, for crates/why/tests/table.rs
    bench/why/causes.py --only crowd                 24 healthy connections at once, short ones too
    bench/why/causes.py --prove --only pacing        what was foretold of a remedy beside what it brought

Every run has network namespaces of its own: sender, path (longfat link drive), receiver. Appends one line per run to
results/DATE/causes.jsonl and prints the table. Needs root, iproute2, ethtool, nftables.
"""

import argparse
import collections
import contextlib
import datetime
import itertools
import json
import math
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TRAFFIC = HERE / "traffic.py"
PORT = 5001
SENDER, RECEIVER = "10.77.1.1", "10.77.1.2"

# Rate in Mbit/s, one-way delay in ms, share of the path that a neighbour's bursts take. The thresholds of crates/why
# were found with the first three, of which two were aside until their failures were mended. The last two were looked
# at once each.
PATHS = {
    "tuning": [(20, 10, 0), (50, 20, 0), (100, 15, 0), (30, 60, 0.1)],
    "once_aside": [(60, 2.5, 0), (25, 75, 0.15)],
    "second_aside": [(40, 6, 0), (75, 45, 0), (15, 30, 0.1)],
    "aside": [(35, 14, 0), (90, 28, 0), (12, 50, 0.2)],
    "last_aside": [(45, 9, 0), (70, 18, 0), (28, 40, 0), (18, 22, 0.15)],
}


def long_delay(delay):
    """A delay of which slow start takes a while."""
    return min(4 * delay, max(delay, 80))


def pipe_bytes(path):
    rate, delay = path[:2]
    return int(rate * 1e6 / 8 * 2 * delay / 1e3)


def left_early_delay(delay):
    """A delay at which a window of eight segments stays below the pipe for seconds."""
    return max(long_delay(delay), 60)


def link(path, **more):
    """A link with a queue of one pipe, or of what `queue` says, in pipes."""
    rate, delay = path[:2]
    queue = max(int(more.pop("queue", 1.0) * pipe_bytes(path)), 15_000)
    lines = [f'rate = "{rate}Mbit"', f'delay = "{delay}ms"']
    lines.append(more.pop("queue_table", None) or f'queue = {{ limit = "{queue}B" }}')
    return "\n".join(lines + [f"{key} = {value}" for key, value in more.items()]) + "\n"


def case(expected, traffic=None, seconds=5, warm=2.0, **more):
    return {"expected": expected, "traffic": traffic or {}, "seconds": seconds, "warm": warm, **more}


READER_BUFFER = 262144


def causes(path, rng):
    """Name -> how it is injected on this path, and which first causes are right."""
    rate, delay = path[:2]
    bytes_per_s, pipe, rtt = rate * 1e6 / 8, pipe_bytes(path), 2 * delay / 1e3
    part = rng.uniform(0.15, 0.4)
    size = rng.choice([200, 500, 900])
    roomy = link(path, queue=2.0)
    # A reader as fast as the window that its buffer makes is held by the window.
    slowly = min(bytes_per_s * part, 0.6 * READER_BUFFER / rtt)
    return {
        "program_idle": case(["program_idle"], {"idle": True}, link=roomy),
        "program_slow": case(["program_idle"], {"burst_bytes": int(bytes_per_s * part / 50), "pause_s": 0.02}, link=roomy),
        "answer_awaited": case(["answer_awaited"], {"request": size, "answer": 2 * size, "no_delay": True}, link=roomy),
        "answer_thinking": case(["answer_awaited"], {"request": size, "answer": 700, "think_s": 0.05, "no_delay": True}, link=roomy),
        "nagle": case(["nagle"], {"request": size, "answer": 100, "writes": 2}, link=roomy),
        "slow_reader": case(["slow_reader"], {"read_bytes_per_s": int(bytes_per_s * part), "read_at_once": pipe}, link=roomy, warm=4.0),
        "slow_reader_even": case(["slow_reader"], {"read_bytes_per_s": int(slowly), "rcvbuf": READER_BUFFER}, link=roomy, warm=4.0),
        "slow_reader_there": case(["slow_reader"], {"read_bytes_per_s": int(slowly), "rcvbuf": READER_BUFFER}, link=roomy, warm=4.0, at="r"),
        "receive_window": case(["receive_window"], {"rcvbuf": max(int(pipe * part), 4096)}, link=roomy),
        "window_scaling": case(["window_scaling"], {}, link=link((max(rate, 60), max(delay, 20))), receiver=["sysctl -qw net.ipv4.tcp_window_scaling=0"]),
        # Writes go into segments of up to half a MiB whatever the buffer, unless those are bounded.
        "send_buffer": case(["send_buffer"], {"sndbuf": rng.choice([32768, 49152, 65536])}, link=link((100, max(long_delay(delay), 60)), queue=2.0),
                            sender=["ip link set dev eth0 gso_max_size 8192"]),
        "slow_start": case(["slow_start"], {"bytes": int(max(pipe, 60_000) * 0.8)}, link=link((rate, long_delay(delay)), queue=2.0), program=True),
        "slow_start_left_early": case(["slow_start_left_early"], {"cc": "reno"}, link=link((max(rate, 50), left_early_delay(delay)), queue=2.0), tuned=["cwnd=8", "ssthresh=8"], warm=20 * left_early_delay(delay) / 1e3),
        "cwnd_clamp": case(["cwnd_clamp"], {}, link=roomy, tuned=[f"clamp={max(int(pipe / 1448 * part), 4)}", f"cwnd={max(int(pipe / 1448 * part), 4)}"]),
        "after_loss": case(["after_loss"], {"cc": "reno"}, link=link((max(rate, 50), 80), queue=0.5) + after_loss(path), warm=6.0),
        "restart_after_idle": case(["restart_after_idle"], {"burst_bytes": min(2 * pipe_bytes((max(rate, 50), long_delay(delay))), 3_000_000), "pause_s": 9 * rtt + 1.5}, link=link((max(rate, 50), long_delay(delay)), queue=2.0), warm=6.0, seconds=8, besides=["program_idle"]),
        "pacing": case(["pacing"], {"pacing_bytes_per_s": int(bytes_per_s * part)}, link=roomy),
        "standing_queue": case(["standing_queue"], {}, link=link(path, queue=2.0), warm=6.0, seconds=6),
        "path_full": case(["path_full"], {}, link=link(path, queue_table=codel(rtt)), warm=6.0, seconds=8),
        "policer": case(["policer"], {}, link=link((2 * rate, delay), queue=2.0), receiver=police(rate / 5), warm=4.0, seconds=10 if delay < 30 else 20),
        "random_loss": case(["random_loss"], {}, link=link(path, queue=2.0, loss=random_loss(path, rng)), warm=4.0, seconds=10 if delay < 30 else 20),
        "reordering": case(["reordering"], {}, link=link((max(rate, 50), 2), jitter=f'"{max(3 * delay, 60)}ms"', reorder="true", queue=20.0), warm=2.0),
        "timeouts": case(["timeouts"], {}, link=link(path, queue=1.0) + outages(), warm=2.0, seconds=6),
        "lost_syns": case(["lost_syns"], {}, link=roomy, receiver=["nft add table ip t", "nft add chain ip t in { type filter hook input priority 0 ; }", "nft add rule ip t in tcp flags syn drop"]),
        "packet_size": case(["packet_size"], {"request": 8000, "answer": 100, "no_delay": True, "chatter": True}, link=roomy, receiver=["nft add table ip t", "nft add chain ip t in { type filter hook input priority 0 ; }", "nft add rule ip t in ip length > 1300 drop"], warm=1.5),
        "host": case(["host"], {}, link=link((4 * rate, delay), queue=2.0), sender=[f"tc qdisc add dev eth0 root tbf rate {rate}mbit burst 16kb limit 4mb"], warm=3.0),
    }


def pairs(path, rng):
    """Two causes at once, each for a part of the time: both have to be named."""
    rate, delay = path[:2]
    bytes_per_s, pipe, rtt = rate * 1e6 / 8, pipe_bytes(path), 2 * delay / 1e3
    part, roomy = rng.uniform(0.15, 0.4), link(path, queue=2.0)
    burst_s = max(0.4, 8 * rtt)
    held = {"burst_bytes": int(bytes_per_s * part * burst_s), "pause_s": burst_s, "drained": True}
    return {
        "both_idle_and_window": case(["program_idle", "receive_window"], {**held, "rcvbuf": max(int(pipe * part), 4096)}, link=roomy, both=True, seconds=8),
        "both_idle_and_pacing": case(["program_idle", "pacing"], {**held, "pacing_bytes_per_s": int(bytes_per_s * part)}, link=roomy, both=True, seconds=8),
    }


def healthy(path, rng):
    """Connections that nothing but their program or their path holds."""
    rate, delay = path[:2]
    bytes_per_s = rate * 1e6 / 8
    part = rng.uniform(0.05, 0.5)
    roomy = link(path, queue=2.0)
    return {
        "healthy_idle": case([], {"idle": True}, link=roomy),
        "healthy_slow": case([], {"burst_bytes": int(bytes_per_s * part / 20), "pause_s": 0.05}, link=roomy),
        "healthy_drops": case([], {"burst_bytes": 5_000, "pause_s": rng.uniform(0.1, 0.6)}, link=roomy),
        "healthy_bulk": case([], {}, link=link(path, queue=1.0), warm=6.0, seconds=6),
        "healthy_bbr": case([], {"cc": "bbr"}, link=link(path, queue=1.0), warm=4.0, seconds=6),
        "healthy_reno": case([], {"cc": "reno"}, link=link(path, queue=2.0), warm=6.0, seconds=6),
    }


def crowd(path, rng):
    """Many healthy connections at once: silent, small drops, short transfers one after the other, slow streams."""
    bytes_per_s = path[0] * 1e6 / 8
    members = [{"idle": True}] * 4
    members += [{"burst_bytes": rng.choice([300, 2_000, 9_000]), "pause_s": rng.uniform(0.05, 0.8)} for _ in range(8)]
    members += [{"burst_bytes": int(bytes_per_s * rng.uniform(0.005, 0.02) / 10), "pause_s": 0.1} for _ in range(4)]
    members += [{"short_bytes": rng.choice([4_000, 30_000, 100_000]), "pause_s": rng.uniform(0.3, 1.5)} for _ in range(8)]
    return {"crowd": case([], {"crowd": members}, link=link(path, queue=2.0), warm=4.0, all=True)}


def random_loss(path, rng):
    """So that a saw-tooth falls far below the pipe: a few windows of a third of it between two losses."""
    segments = pipe_bytes(path) / 1500
    return min(max(3.0 / (segments / 3) ** 2, 0.003), 0.02) * rng.uniform(0.8, 1.25)


def codel(rtt):
    return f'queue = {{ discipline = "codel", target = "{1000 * rtt / 8:.1f}ms", interval = "{2000 * rtt + 50:.0f}ms" }}'


def outages():
    """The path is dead for one and a half of every three seconds, for as long as a proof takes."""
    return "schedule = [" + ", ".join(f'{{ at = "{1.5 * n + 2:.1f}s", loss = {loss} }}' for n in range(80) for loss in [1.0 if n % 2 == 0 else 0.0]) + "]\n"


def after_loss(path):
    """Everything is lost for a moment, once: what a window was cut to then grows back."""
    return 'schedule = [ { at = "4s", loss = 0.2 }, { at = "4.03s", loss = 0.0 } ]\n'


def police(rate):
    kilobytes = int(rate * 1e6 / 8 / 1000)
    return ["nft add table ip t", "nft add chain ip t in { type filter hook input priority 0 ; }",
            f"nft add rule ip t in ip saddr {SENDER} limit rate over {kilobytes} kbytes/second burst 40 kbytes drop"]


class Bed:
    """Sender, path and receiver."""

    def __init__(self, tag, program):
        self.program, self.children = program, []
        self.names = {name: f"lfwhy-{tag}-{name}" for name in ["s", "w", "r"]}

    def __enter__(self):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "add", name], check=True)
        for host, address, end in [("s", SENDER, "left"), ("r", RECEIVER, "right")]:
            self.ip("-n", self.names["w"], "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", self.names[host])
            for space, device in [("w", end), (host, "eth0"), (host, "lo")]:
                self.ip("-n", self.names[space], "link", "set", device, "up")
            self.ip("-n", self.names[host], "addr", "add", f"{address}/24", "dev", "eth0")
            self.run(host, "ethtool -K eth0 tso off gso off gro off")
            self.run(host, "sysctl -qw net.ipv4.tcp_no_metrics_save=1")
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.kill()
        for child in self.children:
            child.wait()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)

    def ip(self, *words):
        subprocess.run(["ip", *words], check=True)

    def inside(self, host, words):
        return ["nsenter", f"--net=/run/netns/{self.names[host]}", *words]

    def run(self, host, line):
        done = subprocess.run(self.inside(host, shlex.split(line)), capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{line}: {done.stderr}")

    def start(self, host, words, **more):
        child = subprocess.Popen(self.inside(host, words), **more)
        self.children.append(child)
        return child

    def start_and_wait(self, host, words, ready):
        child = self.start(host, words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = child.stdout.readline()
        if ready not in line:
            raise SystemExit(f"{words}: {line}")


def neighbour(bed, path):
    """A connection beside that sends in bursts."""
    rate, _, share = path
    port = str(PORT + 1)
    behaviour = json.dumps({"burst_bytes": int(rate * 1e6 / 8 * share / 10), "pause_s": 0.1})
    bed.start_and_wait("r", [sys.executable, str(TRAFFIC), "serve", port, behaviour], "ready")
    bed.start("s", [sys.executable, str(TRAFFIC), "send", RECEIVER, port, behaviour], stderr=subprocess.DEVNULL)


def look(bed, case, seconds):
    send = [sys.executable, str(TRAFFIC), "send", RECEIVER, str(PORT), json.dumps(case["traffic"])]
    why = [bed.program, "why", "--json", "--rate", f'{case["rate"]}Mbit', "--record", case["looks"]]
    if case.get("program"):
        command = [*why, "--", *send]
    else:
        bed.start("s", send, stderr=subprocess.DEVNULL)
        time.sleep(case["warm"] / 2)
        if case.get("tuned"):
            subprocess.run(bed.inside("s", [bed.program, "tcb", "set", f"dst {RECEIVER}", *case["tuned"], "--yes"]), check=False, stdout=subprocess.DEVNULL)
        time.sleep(case["warm"] / 2)
        command = [*why, "--for", f"{seconds}s", f"port {PORT}"]
    done = subprocess.run(bed.inside(case.get("at", "s"), command), capture_output=True, text=True, timeout=120)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return json.loads(done.stdout)["connections"]


BEDS = itertools.count()


@contextlib.contextmanager
def made(case, path, program):
    """Sender, path and receiver of a case, ready; and the tag of their names."""
    tag = f"{os.getpid()}-{next(BEDS)}"
    with Bed(tag, program) as bed:
        plan = pathlib.Path(f"/tmp/lfwhy-{tag}.toml")
        plan.write_text(case["link"] + f"\n")
        for host in ["sender", "receiver"]:
            for line in case.get(host, []):
                bed.run(host[0], line)
        bed.start_and_wait("w", [program, "link", "drive", "--plan", str(plan), "--a", "left", "--b", "right"], "ready")
        plan.unlink()
        bed.start_and_wait("r", [sys.executable, str(TRAFFIC), "serve", str(PORT), json.dumps(case["traffic"])], "ready")
        if path[2]:
            neighbour(bed, path)
        yield bed, tag


def proof(name, case, path, seed, program):
    """The rate with the remedy, alternately on and off, beside what was foretold before it was set."""
    with made(case, path, program) as (bed, _):
        send = [sys.executable, str(TRAFFIC), "send", RECEIVER, str(PORT), json.dumps(case["traffic"])]
        bed.start("s", send, stderr=subprocess.DEVNULL)
        time.sleep(case["warm"] / 2)
        if case.get("tuned"):
            subprocess.run(bed.inside("s", [bed.program, "tcb", "set", f"dst {RECEIVER}", *case["tuned"], "--yes"]), check=False, stdout=subprocess.DEVNULL)
        time.sleep(case["warm"] / 2)
        why = [bed.program, "why", "--fix", "--prove", "--json", "--rate", f"{case_rate(case, path)}Mbit", "--for", "8s", f"port {PORT}"]
        done = subprocess.run(bed.inside("s", why), capture_output=True, text=True, timeout=240)
    found = {"case": name, "path": path, "seed": seed, "exit_code": done.returncode}
    decoder, text, parts = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        part, end = decoder.raw_decode(text)
        parts, text = parts + [part], text[end:].strip()
    if len(parts) < 2:
        return {**found, "said": done.stderr.strip()[-300:]}
    causes = parts[0]["connections"][0]["causes"]
    return {**found, "cause": causes[0]["cause"], "foretold": parts[1]["foretold"], "setting": parts[1]["setting"],
            **{key: parts[1]["proof"][key] for key in ["with_bps", "without_bps", "interval_bps", "is_effect"]}}


def case_rate(case, path):
    """Mbit/s of the case's own link."""
    return float(re.search(r'rate = "([0-9.]+)Mbit"', case["link"]).group(1)) if "link" in case else path[0]


# A forecast counts as met where the measured rate lies in its interval, widened by this part.
FORETOLD_WITHIN = 0.25


def foretold(proofs):
    """How often the rate with the remedy was the one foretold."""
    lines, met, counted = [f"{'case':<24} {'path':<16} {'foretold, Mbit/s':<18} {'with':>7} {'without':>8}  setting"], 0, 0
    for run in sorted(proofs, key=lambda run: (run["case"], run["path"])):
        if "setting" not in run or not run["foretold"]:
            lines.append(f"{run['case']:<24} {str(run['path']):<16} {run.get('said', 'nothing foretold')[:80]}")
            continue
        least, most = run["foretold"]["least_bps"], run["foretold"]["most_bps"] or math.inf
        counted += 1
        is_met = least * (1 - FORETOLD_WITHIN) <= run["with_bps"] <= most * (1 + FORETOLD_WITHIN)
        met += is_met
        lines.append(f"{run['case']:<24} {str(run['path']):<16} {f'{least / 1e6:.1f} to {most / 1e6:.1f}':<18} {run['with_bps'] / 1e6:>7.1f} "
                     f"{run['without_bps'] / 1e6:>8.1f}  {run['setting']}{'' if is_met else '  MISSED'}")
    return "\n".join(lines + [f"within {FORETOLD_WITHIN:.0%} of what was foretold: {met} of {counted}"])


def append(path, value):
    with open(path, "a") as file:
        file.write(json.dumps(value, separators=(",", ":")) + "\n")


def one(name, case, path, seed, program):
    with made(case, path, program) as (bed, tag):
        looks = pathlib.Path(f"/tmp/lfwhy-{tag}.looks")
        try:
            found = look(bed, {**case, "rate": case_rate(case, path), "looks": str(looks)}, case["seconds"])
            recorded = [json.loads(line) for line in looks.read_text().splitlines()] if looks.exists() else []
        finally:
            looks.unlink(missing_ok=True)
    if case.get("all"):
        return recorded, [outcome(name, case, path, seed, one) for one in found]
    return recorded, [outcome(name, case, path, seed, found[0] if found else None)]


def outcome(name, case, path, seed, first):
    """What was said of one connection, beside what would be right."""
    shares = [(share["cause"], round(share["share"], 3)) for share in first["causes"]] if first else []
    return {
        "case": name, "path": path, "rate_mbps": case_rate(case, path), "seed": seed, "expected": case["expected"], "both": case.get("both", False), "besides": case.get("besides", []),
        "shares": shares, "sentence": first and first["sentence"], "figures": first and first["figures"],
        "evidence": {share["cause"]: share["evidence"] for share in first["causes"]} if first else {},
    }


FAULTLESS = {"program_idle", "path_full", "standing_queue", "slow_start", "unknown", "other_end_sends", "path_changed"}


# Each of two causes at once has to have such a share of the time.
BOTH_SHARE = 0.05


def both_named(run):
    """The two causes with the largest shares, and whether they are the two that were injected."""
    named = sorted(cause for cause, share in run["shares"][:2] if share >= BOTH_SHARE)
    return "+".join(named) or "nothing", named == sorted(run["expected"])


def verdict(run):
    """The first cause that is not one the injection brings along; and whether it is right."""
    shares = [cause for cause, share in run["shares"] if cause not in run["besides"]]
    first = shares[0] if shares else "nothing"
    if run["both"]:
        return both_named(run)
    if not run["expected"]:
        return first, first in FAULTLESS
    return first, first in run["expected"]


def table(runs):
    cells = collections.defaultdict(collections.Counter)
    for run in runs:
        first, right = verdict(run)
        cells[run["case"]][(right, first)] += 1
    lines = [f"{'injected':<24} {'runs':>4} {'right':>5}  first cause named"]
    for name, found in cells.items():
        right = sum(count for (is_right, _), count in found.items() if is_right)
        named = ", ".join(f"{count} {cause}" for (_, cause), count in found.most_common())
        lines.append(f"{name:<24} {sum(found.values()):>4} {right:>5}  {named}")
    injected = [run for run in runs if run["expected"] and not run["both"]]
    both = [run for run in runs if run["both"]]
    harmless = [run for run in runs if not run["expected"]]
    if injected:
        right = sum(verdict(run)[1] for run in injected)
        lines.append(f"right cause first: {right} of {len(injected)} ({100 * right / len(injected):.0f} %)")
    if both:
        lines.append(f"of two causes at once both named: {sum(verdict(run)[1] for run in both)} of {len(both)}")
    if harmless:
        accused = sum(not verdict(run)[1] for run in harmless)
        lines.append(f"healthy ones accused: {accused} of {len(harmless)} ({100 * accused / len(harmless):.1f} %)")
    return "\n".join(lines)


def keep(path, told, recorded):
    """The looks of the connection that answers for the run, or of all in a crowd, with what would be right: a line each."""
    if not recorded or not told:
        return
    run = told[0]
    note = json.dumps({key: run[key] for key in ["case", "path", "seed", "expected", "besides", "both", "rate_mbps"]})
    for looks in recorded if len(told) > 1 else [of_run(run, recorded)]:
        append(path, {**looks, "note": note})


def of_run(run, recorded):
    who = run["sentence"] and run["sentence"].split(" gets ")[0].split(" receives ")[0].rstrip(".")
    return next((one for one in recorded if one["who"] == who), recorded[0])


def recorded_before(path):
    """Case, path and seed of the runs in a file of looks: they are not repeated."""
    if not path or not os.path.exists(path):
        return []
    with open(path) as file:
        notes = [json.loads(json.loads(line)["note"]) for line in file]
    return [(note["case"], note["path"], note["seed"]) for note in notes]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", choices=PATHS, default="tuning")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name begins so")
    parser.add_argument("--path", type=int, default=None, help="only the path of this number")
    parser.add_argument("--limit", type=float, default=None, help="begin no more runs after so many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; each takes up to half of a processor")
    parser.add_argument("--prove", action="store_true", help="also the remedy, on and off, and its rate beside the one foretold")
    parser.add_argument("--record", default=None, help="append every run's looks, with what would be right, to this file")
    parser.add_argument("--note", default="", help="kept with every result")
    parser.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    runs, proofs, start = [], [], time.monotonic()
    work = []
    for number, path in enumerate(PATHS[args.paths]):
        for seed in range(args.first_seed, args.first_seed + args.seeds):
            rng = random.Random(f"{path} {seed}")
            cases = {**causes(path, rng), **healthy(path, rng), **pairs(path, rng), **crowd(path, rng)}
            work += [(name, found, path, seed) for name, found in cases.items()
                     if (not args.only or any(name.startswith(wanted) for wanted in args.only)) and args.path in (None, number)]
    random.Random(args.first_seed).shuffle(work)
    done = recorded_before(args.record)
    work = [item for item in work if (item[0], list(item[2]), item[3]) not in done]
    def carry_out(item):
        name, found, path, seed = item
        if args.limit and time.monotonic() - start > args.limit:
            return
        about = {"date": datetime.datetime.now().isoformat(timespec="seconds"), "paths": args.paths, "note": args.note}
        if args.prove:
            result = {**about, **proof(name, found, path, seed, args.program)}
            proofs.append(result)
            append(folder / "proofs.jsonl", result)
            print(json.dumps(result), file=sys.stderr, flush=True)
            return
        recorded, told = one(name, found, path, seed, args.program)
        if args.record:
            keep(args.record, told, recorded)
        for run in told:
            run = {**about, **run}
            runs.append(run)
            append(folder / "causes.jsonl", run)
            first, right = verdict(run)
            print(f"{'ok   ' if right else 'WRONG'} {name} {path}: {first}  {run['shares'][:3]}", file=sys.stderr, flush=True)
            if not right:
                print(f"      {run['evidence']} {run['figures']}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(carry_out, work))
    if args.prove:
        print(foretold(proofs))
        return
    if len({(run["case"], run["path"], run["seed"]) for run in runs}) < len(work):
        print(f"fewer than the {len(work)} runs: the time was over, or no connection was seen", file=sys.stderr)
    print(table(sorted(runs, key=lambda run: run["case"])))


if __name__ == "__main__":
    main()
