#!/usr/bin/env python3
"""What several tools say of one path with cross traffic: ImTCP, BBR's bandwidth, iperf3.

    bench/avail/compare.py                            # 100 Mbit/s, 30 ms, Poisson cross traffic of 30 and 70 Mbit/s
    bench/avail/compare.py --law onoff --seconds 20 --rounds 3
    bench/avail/compare.py --merge-us 1000            # the receiver merges what arrives within a millisecond (GRO)
    bench/avail/compare.py --summary bench/avail/results/2026-01-31

Two hosts and an emulated link are namespaces made here. One tool at a time, each beside the same cross traffic (same seed);
what was free is the link's rate less what the cross traffic's receiver counted, headers included, from the third second
of the tool's own time to its end. iperf3 runs alone, too: that is the truth of the capacity. All figures count IP headers.
Raw figures are appended to results/DATE/raw.jsonl; summary.md beside it is made from them. The link's driver says
whether it was punctual; where it was not, the round counts nowhere. Needs root, iproute2, ethtool, iperf3 and a built
longfat (LONGFAT names another than target/release/longfat).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import frame
from frame import LONGFAT

RATE_MBPS = 100
PLAN = [
    f'rate = "{RATE_MBPS}Mbit"', 'delay = "15ms"', 'coalesce = "0s"',
    'queue = { discipline = "droptail", limit = "375KB" }', 'late_limit_p99 = "500us"',
]
# iperf3 sets its congestion control after connecting: a socket that began under BBR would keep its pacing.
SYSCTLS = ["net.ipv4.tcp_congestion_control=reno"]
DATAGRAM = 1222
UDP_WIRE = (DATAGRAM + 28) / DATAGRAM
MTU = 1500
TCP_WIRE = MTU / 1448
SKIP_S = 3
# By its name, or the congestion control of a transfer.
TOOLS = ["lf_imtcp", "bbr", "iperf3"]


class Path:
    """The bed with a server of each kind."""

    def __init__(self, bed, directory):
        self.bed, self.directory = bed, pathlib.Path(directory)
        for port in ("5201", "5202"):
            bed.start(bed.receiver, LONGFAT, "transfer", "serve", "--trusted", "--listen", f"{bed.RECEIVER}:{port}", ready="ready")
        bed.start(bed.receiver, "iperf3", "-s", "-p", "5301", "--forceflush", ready="listening")

    def send(self, port, name, *arguments):
        """A transfer that writes what both ends know to a file of that name, in place of the last one's."""
        pathlib.Path(self.samples(name)).unlink(missing_ok=True)
        command = [LONGFAT, "transfer", "send", f"{self.bed.RECEIVER}:{port}", "--samples", self.samples(name)]
        with open(self.directory / f"{name}.log", "w") as log:
            return self.bed.popen(self.bed.sender, *command, *arguments, stdout=subprocess.DEVNULL, stderr=log)

    def ended(self, process, name):
        if process.wait():
            print((self.directory / f"{name}.log").read_text(), file=sys.stderr)
            raise SystemExit(f"transfer '{name}' ended with {process.returncode}")

    def samples(self, name):
        return str(self.directory / f"{name}.jsonl")

    def records(self, name, kind):
        lines = pathlib.Path(self.samples(name)).read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["type"] == kind]

    def cross(self, mbps, law, seconds):
        """Starts the cross traffic; its rate counts headers."""
        how = ["--udp", "--rate", f"{round(mbps * 1e6 / UDP_WIRE)}bit", "--arrivals", law, "--datagram", f"{DATAGRAM}B"]
        return self.send("5202", "cross", *how, "--duration", f"{seconds}s")

    def free(self, since_us, until_us):
        """What the cross traffic left, in Mbit/s: every clock is this machine's CLOCK_MONOTONIC."""
        rows = self.records("cross", "interval")
        kept = [row for row in rows if row["time_us"] - row["duration_us"] >= since_us and row["time_us"] <= until_us]
        if not kept:
            raise SystemExit(f"the cross traffic's receiver counted no whole interval after the first {SKIP_S} s: choose a longer --seconds")
        span_us = sum(row["duration_us"] for row in kept)
        return RATE_MBPS - sum(row["bytes"] for row in kept) * 8 * UDP_WIRE / span_us

    def transfer(self, cc, seconds):
        """Median of what the connection held for its path, and its goodput with headers, in Mbit/s."""
        self.ended(self.send("5201", "measured", "--cc", cc, "--duration", f"{seconds}s"), "measured")
        first_us = min(row["time_us"] - row["duration_us"] for row in self.records("measured", "interval"))
        found = self.records("measured", "avail")
        held = [row["avail_bps"] / 1e6 for row in found if row["time_us"] > first_us + SKIP_S * 1e6]
        goodput = self.records("measured", "flow")[0]["goodput_bps"] * TCP_WIRE / 1e6
        return (statistics.median(held) if held else None), goodput

    def iperf3(self, seconds):
        """What it says is what it got."""
        client = ["iperf3", "-c", self.bed.RECEIVER, "-p", "5301", "-t", str(seconds - SKIP_S), "-O", str(SKIP_S), "-J"]
        process = self.bed.popen(self.bed.sender, *client, stdout=subprocess.PIPE)
        end = json.loads(process.communicate()[0])["end"]
        return (end["sum_received"]["bits_per_second"] * TCP_WIRE / 1e6,) * 2

    def merge(self, within_us):
        """The receiver's stack gets what arrives within this time as one (GRO with a deferred flush), so it acknowledges as much at once."""
        settings = {"gro_flush_timeout": 1000 * within_us, "napi_defer_hard_irqs": 1000}
        writes = [f"echo {value} > /sys/class/net/eth/{name}" for name, value in settings.items()]
        # veth hands to GRO only what its other end could not have sent as one.
        frame.run("ip", "netns", "exec", self.bed.link, "ethtool", "-K", "b", "tso", "off", "gso", "off")
        frame.run("ip", "netns", "exec", self.bed.receiver, "sh", "-ec", "; ".join(["ethtool -K eth gro on", *writes]))

    def acknowledgements(self):
        """TCP segments that the receiver has sent: those of the control connection are few."""
        counters = self.bed.popen(self.bed.receiver, "cat", "/proc/net/snmp", stdout=subprocess.PIPE).communicate()[0]
        names, values = [line.split() for line in counters.splitlines() if line.startswith("Tcp:")]
        return int(dict(zip(names, values))["OutSegs"])

    def measure(self, tool, mbps, args):
        """One tool beside cross traffic, or none."""
        before = self.acknowledgements()
        link = self.bed.drive(*PLAN)
        beside = self.cross(mbps, args.law, args.seconds + 3) if mbps else None
        time.sleep(1)
        began_us = time.monotonic() * 1e6
        said, goodput = self.iperf3(args.seconds) if tool == "iperf3" else self.transfer(tool, args.seconds)
        if beside:
            self.ended(beside, "cross")
        until_us = began_us + args.seconds * 1e6
        free = self.free(began_us + SKIP_S * 1e6, until_us) if beside else RATE_MBPS
        driven = self.bed.driven(link)
        ways = driven["forward"], driven["backward"]
        segments = goodput * 1e6 / 8 / MTU * args.seconds
        return {
            "law": args.law, "seconds": args.seconds, "cross": mbps, "tool": tool, "free": free, "said": said,
            "goodput": goodput, "punctual": all(way["punctual"] for way in ways),
            "late_p99_us": max(way["late_p99_us"] for way in ways),
            "merge_us": args.merge_us, "segments_per_ack": segments / max(self.acknowledgements() - before, 1),
        }


def line(row):
    said = "nothing" if row["said"] is None else f"{row['said']:.1f}"
    late = "" if row["punctual"] else f" (NOT PUNCTUAL: {row['late_p99_us']} us late)"
    return (
        f"{row['tool']:9} beside {row['cross']:3} Mbit/s {row['law']}: free {row['free']:5.1f}, says {said}, "
        f"gets {row['goodput']:.1f}, {row['segments_per_ack']:.1f} segments per acknowledgement{late}"
    )


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def summarise(directory):
    head, rows = frame.read(directory)
    text = [f"# Available bandwidth, {head['date']}, kernel {head['kernel']}, {head['cores']} cores", ""]
    text += [f"{RATE_MBPS} Mbit/s, round trip 30 ms, a queue of one bandwidth-delay product; Mbit/s with headers. Rounds in which"]
    text += ["the link was punctual: median (least to greatest). Off: what it says less what was free, in the same round.", ""]
    text += ["| cross traffic | receiver merges | tool | rounds | free | says | off | its own share |", "|---|---|---|---|---|---|---|---|"]
    place = lambda row: (row["law"], row["cross"], row.get("merge_us", 0), row["tool"])
    for law, cross, merge_us, tool in dict.fromkeys(map(place, rows)):
        group = [row for row in rows if place(row) == (law, cross, merge_us, tool)]
        kept = [row for row in group if row["punctual"]]
        column = lambda of: spread([of(row) for row in kept]) if kept else "–"
        told = [row for row in kept if row["said"] is not None]
        beside = f"{cross} {law}" if cross else "none"
        said = [spread([row["said"] for row in told]), spread([row["said"] - row["free"] for row in told])] if told else ["nothing", "–"]
        merged = [row["segments_per_ack"] for row in kept if "segments_per_ack" in row]
        merging = f"{merge_us} us: {statistics.median(merged):.1f} segments per acknowledgement" if merge_us and merged else "–"
        cells = [beside, merging, tool, f"{len(kept)} of {len(group)}", column(lambda row: row["free"]), *said, column(lambda row: row["goodput"])]
        text.append(f"| {' | '.join(cells)} |")
    (directory / "summary.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", default="poisson", choices=["constant", "poisson", "onoff", "pareto"])
    parser.add_argument("--cross", type=int, nargs="+", default=[30, 70], help="Mbit/s of cross traffic, with headers")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--merge-us", type=int, default=0, help="let the receiver merge what arrives within so long (GRO); 0: nothing is merged")
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this directory")
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    args = parser.parse_args()
    if args.seconds <= SKIP_S:
        parser.error(f"--seconds is {args.seconds}, and the first {SKIP_S} of each tool are not counted: at least {SKIP_S + 1}")
    if args.summary:
        return summarise(args.summary)
    results = None if args.dry else frame.Results(__file__)
    cases = [("iperf3", 0)] + [(tool, mbps) for mbps in args.cross for tool in TOOLS]
    with frame.held(TOOLS), frame.Bed(SYSCTLS) as bed, tempfile.TemporaryDirectory() as directory:
        path = Path(bed, directory)
        if args.merge_us:
            path.merge(args.merge_us)
        for _ in range(args.rounds):
            for tool, mbps in cases:
                row = path.measure(tool, mbps, args)
                print(line(row), flush=True)
                if results:
                    results.add(row)
    if results:
        summarise(results.directory)


if __name__ == "__main__":
    main()
