#!/usr/bin/env python3
"""What a congestion control costs: processor seconds per GB of ours beside the kernel's cubic and reno, in one run.

    bench/cc/cost.py                          # all of ours, 10 rounds
    bench/cc/cost.py --cc lf_cubic --rounds 5 --gigabytes 2
    bench/cc/cost.py --cc lf_reno --cc lf_imtcp    # what measuring costs: lf_imtcp beside lf_reno
    bench/cc/cost.py --summary bench/cc/results/2026-01-31

Two namespaces, a veth, segments of MTU size (the most acknowledgements for a GB), one packet in 20,000 dropped, so that
flows are in congestion avoidance and not for ever in slow start. Each round runs every congestion control once, in an
order of its own; a ratio is of two neighbours in time: one of ours and the mean of the kernel's runs in the same round.
Processor time is user and system time of both iperf3 processes: what the kernel does for the packets runs in their
context, unless ksoftirqd takes over (its growth is recorded beside it, and counted). Other work on the machine only
ever adds to it, so the least of all rounds stands beside the median.

Vegas keeps so small a window on a path without distance that TCP works in small pieces. Whether its cost is that, or the
algorithm's, a row of the kernel's reno says that is held to the median window of lf_vegas of the same round (the route's
cwnd, locked).

The kernel also counts the time spent in our BPF programs themselves (kernel.bpf_stats_enabled, for one run of each after
the rounds, because the counting costs, too): that is what ours adds to the kernel's TCP, free of the noise of the rest.

Raw figures are appended to results/DATE/raw.jsonl; summary.md beside it is made from them. Needs root, iproute2,
ethtool, nftables and iperf3.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import frame
from frame import run

KERNEL = ["cubic", "reno"]
OURS = ["lf_cubic", "lf_reno", "lf_highspeed", "lf_scalable", "lf_bic", "lf_vegas"]
DROP_ONE_IN = 20_000
MSS_BYTES = 1448


def ksoftirqd_seconds():
    """User and system time of all ksoftirqd threads."""
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if name.startswith("ksoftirqd/"):
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def bpf(command, attributes):
    """The bpf(2) system call; 0 or a descriptor, negative on failure."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(321 if platform.machine() == "x86_64" else 280, command, attributes, 120)


def program_times():
    """Name, time and count of every struct_ops program: {id: (name, nanoseconds, calls)}."""
    found, attributes = {}, (ctypes.c_uint32 * 30)()
    while True:
        if bpf(11, attributes) < 0:  # BPF_PROG_GET_NEXT_ID: from [0] to [1]
            return found
        attributes[0] = attributes[1]
        fd = bpf(13, (ctypes.c_uint32 * 30)(attributes[0]))  # BPF_PROG_GET_FD_BY_ID
        if fd < 0:
            continue
        text = pathlib.Path(f"/proc/self/fdinfo/{fd}").read_text()
        os.close(fd)
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if int(fields["prog_type"]) == 27:  # BPF_PROG_TYPE_STRUCT_OPS
            found[attributes[0]] = (int(fields["run_time_ns"]), int(fields["run_cnt"]))


class Bed:
    """Two hosts and a cable."""

    def __init__(self):
        tag = f"lfcost{os.getpid()}"
        self.sender, self.receiver = f"{tag}-s", f"{tag}-r"

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        run("ip", "netns", "add", self.sender)
        run("ip", "netns", "add", self.receiver)
        peer = ["type", "veth", "peer", "name", "eth", "netns", self.receiver]
        run("ip", "-n", self.sender, "link", "add", "eth", *peer)
        for name, address in ((self.sender, "10.78.0.1/24"), (self.receiver, "10.78.0.2/24")):
            run("ip", "-n", name, "address", "add", address, "dev", "eth")
            run("ip", "-n", name, "link", "set", "dev", "eth", "up")
            run("ip", "netns", "exec", name, "ethtool", "-K", "eth", "tso", "off", "gso", "off", "gro", "off")
        rule = "iifname eth numgen inc mod %d == 0 drop" % DROP_ONE_IN
        chain = "table ip loss {\n chain in {\n type filter hook prerouting priority -300\n %s\n }\n}" % rule
        run("ip", "netns", "exec", self.receiver, "nft", chain)

    def __exit__(self, *_):
        for name in (self.sender, self.receiver):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def measure(self, cc, gigabytes, window_segments=None):
        held = ["cwnd", "lock", str(window_segments)] if window_segments else []
        run("ip", "-n", self.sender, "route", "replace", "10.78.0.0/24", "dev", "eth", "congctl", cc, *held)
        # A route's window comes to a connection by way of what the kernel remembers of the one before.
        run("ip", "-n", self.sender, "tcp_metrics", "flush")
        if window_segments:
            self.transfer(1)
        before = ksoftirqd_seconds()
        client, server = self.transfer(int(gigabytes * 1e9))
        report = json.loads(client.output)
        end = report["end"]
        windows = [stream["snd_cwnd"] / MSS_BYTES for part in report["intervals"] for stream in part["streams"]]
        if end["sender_tcp_congestion"] != cc:
            raise SystemExit(f"asked for {cc}, got {end['sender_tcp_congestion']}")
        cpu = client.cpu_seconds + server.cpu_seconds
        softirq = ksoftirqd_seconds() - before
        gigabytes = end["sum_received"]["bytes"] / 1e9
        return {
            "cc": cc,
            "cpu_s_per_gb": (cpu + softirq) / gigabytes,
            "ksoftirqd_s_per_gb": softirq / gigabytes,
            "gbit_per_s": end["sum_received"]["bits_per_second"] / 1e9,
            "retransmits": end["sum_sent"]["retransmits"],
            "median_window_segments": statistics.median(windows),
        }

    def callbacks(self, cc, gigabytes):
        """Time in and number of our callbacks per GB, as the kernel counts them."""
        switch = pathlib.Path("/proc/sys/kernel/bpf_stats_enabled")
        previous = switch.read_text()
        switch.write_text("1")
        try:
            before = program_times()
            row = self.measure(cc, gigabytes)
            after = program_times()
        finally:
            switch.write_text(previous)
        grown = [(ns - before.get(id_, (0, 0))[0], calls - before.get(id_, (0, 0))[1]) for id_, (ns, calls) in after.items()]
        ns, calls = (sum(part) for part in zip(*grown))
        return row | {"callbacks_s_per_gb": ns / 1e9 / gigabytes, "callbacks_per_gb": calls / gigabytes}

    def transfer(self, size_bytes):
        """The client and the server, both ended."""
        server = self.iperf(self.receiver, ["-s", "-1", "-p", "5302"])
        time.sleep(0.2)
        client = self.iperf(self.sender, ["-c", "10.78.0.2", "-p", "5302", "-n", str(size_bytes), "-J", "-i", "0.1"])
        return Ended(client), Ended(server)

    @staticmethod
    def iperf(name, args):
        command = ["ip", "netns", "exec", name, "iperf3", *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


class Ended:
    """What a program printed, and its user and system time."""

    def __init__(self, process):
        self.output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"iperf3 ended with {process.returncode}")
        self.cpu_seconds = usage.ru_utime + usage.ru_stime


def ratios(rows, ours, theirs):
    """Per round: ours over theirs."""
    of = lambda round_, cc: [r["cpu_s_per_gb"] for r in rows if r["round"] == round_ and r["cc"] == cc]
    rounds = dict.fromkeys(row["round"] for row in rows)
    pairs = [(of(r, ours), of(r, theirs)) for r in rounds]
    return [statistics.mean(a) / statistics.mean(b) for a, b in pairs if a and b]


def spread(values):
    if not values:
        return "–"
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def summarise(directory):
    head, rows = frame.read(directory)
    counted = [row for row in rows if "callbacks_per_gb" in row]
    rows = [row for row in rows if "callbacks_per_gb" not in row]
    rounds = len(dict.fromkeys(row["round"] for row in rows))
    text = [f"# Cost of a congestion control, {head['date']}, kernel {head['kernel']}, {head['cores']} cores", ""]
    text += [f"{rounds} rounds, {head['gigabytes']} GB each, MTU-sized segments, one packet in {DROP_ONE_IN} dropped."]
    text += ["Median and quartiles; ratios of runs of the same round. The same congestion control beside itself"]
    text += ["(each round runs the kernel's twice) says how much of a ratio is noise.", ""]
    # An algorithm that is ours and something more (lf_imtcp: lf_reno that measures) is compared with what it is otherwise.
    references = KERNEL + [cc for cc in ["lf_reno"] if any(row["cc"] == cc for row in rows)]
    headings = ["cc", "CPU s per GB", "least", *(f"beside {cc}" for cc in references), "Gbit/s", "retransmits", "median window"]
    text += [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for cc in dict.fromkeys(row["cc"] for row in rows):
        group = [row for row in rows if row["cc"] == cc]
        middle = lambda field: statistics.median(row[field] for row in group)
        beside = [spread(ratios(rows, cc, theirs) if cc != theirs else noise(rows, cc)) for theirs in references]
        cost = spread([row["cpu_s_per_gb"] for row in group])
        least = min(row["cpu_s_per_gb"] for row in group)
        text.append(
            f"| {cc} | {cost} | {least:.3f} | {' | '.join(beside)} | {middle('gbit_per_s'):.1f} | {middle('retransmits'):.0f} "
            f"| {middle('median_window_segments'):.0f} |"
        )
    if counted:
        text += ["", "Time in our callbacks themselves (kernel.bpf_stats_enabled, whose own cost is in it):", ""]
        text += ["| cc | callbacks per GB | ns each | CPU s per GB | of all CPU time |", "|---|---|---|---|---|"]
    for cc in dict.fromkeys(row["cc"] for row in counted):
        group = [row for row in counted if row["cc"] == cc]
        middle = lambda field: statistics.median(row[field] for row in group)
        calls, seconds = middle("callbacks_per_gb"), middle("callbacks_s_per_gb")
        share = statistics.median(row["callbacks_s_per_gb"] / row["cpu_s_per_gb"] for row in group)
        text.append(f"| {cc} | {calls:.0f} | {1e9 * seconds / calls:.0f} | {seconds:.4f} | {100 * share:.1f} % |")
    (directory / "summary.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


def noise(rows, cc):
    """Per round: the second run over the first."""
    values = []
    for round_ in dict.fromkeys(row["round"] for row in rows):
        pair = [row["cpu_s_per_gb"] for row in rows if row["round"] == round_ and row["cc"] == cc]
        values += [pair[1] / pair[0]] if len(pair) == 2 else []
    return values


def rows_of_round(bed, order, gigabytes):
    for cc in order:
        row = bed.measure(cc, gigabytes)
        yield row
        if cc == "lf_vegas":
            held = max(2, round(row["median_window_segments"]))
            yield bed.measure("reno", gigabytes, held) | {"cc": "reno, window of vegas"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cc", action="append", help="one of ours; may be repeated")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this directory")
    args = parser.parse_args()
    if args.summary:
        return summarise(args.summary)
    now = datetime.datetime.now(datetime.timezone.utc)
    results = frame.Results(__file__, gigabytes=args.gigabytes)
    ours = args.cc or OURS
    # The kernel's twice a round: their ratio to themselves is the noise.
    order = KERNEL * 2 + ours
    with frame.held(ours), Bed() as bed:
        for number in range(args.rounds):
            round_ = f"{now:%H%M%S}-{number}"
            for row in rows_of_round(bed, random.sample(order, len(order)), args.gigabytes):
                results.add({"round": round_} | row)
                print(f"{round_} {row['cc']:22} {row['cpu_s_per_gb']:.3f} s/GB {row['gbit_per_s']:.1f} Gbit/s", flush=True)
        for cc in ours:
            row = bed.callbacks(cc, args.gigabytes)
            results.add({"round": f"{now:%H%M%S}-callbacks"} | row)
    summarise(results.directory)


if __name__ == "__main__":
    main()
