#!/usr/bin/env python3
"""Single-stream TCP speed of `longfat transfer` beside iperf3's, on loopback or a veth pair.

    bench/transfer/compare.py --path lo --rounds 4
    bench/transfer/compare.py --path veth --rounds 4
    bench/transfer/compare.py --summary bench/transfer/results/2026-01-31
    bench/transfer/compare.py --path veth --rounds 8 --against OTHER/longfat     two builds of longfat

Each round runs every variant once, in turned order, so that whatever else the machine does falls on all alike;
only ratios within a round are compared. Everything runs in network namespaces made here, in which reno is the
default congestion control: iperf3 sets its -C after connecting, and a socket that began under BBR keeps pacing.
Raw figures are appended to results/DATE/raw.jsonl; summary.md beside it is made from them. Needs root, iproute2
and iperf3.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PORT = 5201

# name: (program, arguments of the client)
VARIANTS = {
    "iperf3": ("iperf3", []),
    "longfat": ("longfat", []),
    "longfat, echo every 1 MB": ("longfat", ["--echo-every", "1MB"]),
    "longfat, discard": ("longfat", ["--receive", "discard"]),
    "iperf3 -Z": ("iperf3", ["-Z"]),
    "longfat, zero-copy": ("longfat", ["--zero-copy"]),
}
BASELINE = {
    "longfat": "iperf3",
    "longfat, echo every 1 MB": "iperf3",
    "longfat, discard": "iperf3",
    "longfat, zero-copy": "iperf3 -Z",
}


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


class Hosts:
    """Two namespaces on a wire, or one with its loopback."""

    def __init__(self, path):
        tag = f"lfbench{os.getpid()}"
        self.names = [f"{tag}a"] if path == "lo" else [f"{tag}a", f"{tag}b"]
        self.address = "127.0.0.1" if path == "lo" else "10.78.0.2"

    def __enter__(self):
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            self.run(name, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"])
        if len(self.names) == 2:
            near, far = self.names
            ip("-n", near, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", far)
            for host, name in enumerate(self.names, 1):
                ip("-n", name, "address", "add", f"10.78.0.{host}/24", "dev", "wire")
                ip("-n", name, "link", "set", "wire", "up")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def command(self, name, arguments):
        return ["ip", "netns", "exec", name, *arguments]

    def run(self, name, arguments, **options):
        return subprocess.run(self.command(name, arguments), check=True, **options)

    def server(self, arguments):
        return subprocess.Popen(self.command(self.names[-1], arguments), stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True)

    def client(self, arguments):
        result = self.run(self.names[0], arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return json.loads(result.stdout)


def run_iperf3(hosts, extra, seconds):
    server = hosts.server(["iperf3", "-s", "-1", "-p", str(PORT), "--forceflush"])
    wait_for_line(server, "listening")
    end = hosts.client(["iperf3", "-c", hosts.address, "-p", str(PORT), "-t", str(seconds), "-C", "reno", "-J",
                        *extra])["end"]
    finish(server)
    cpu = end["cpu_utilization_percent"]
    return {
        "goodput_bps": end["sum_received"]["bits_per_second"],
        "retransmitted_segments": end["sum_sent"]["retransmits"],
        "cpu_percent": [cpu["host_total"], cpu["remote_total"]],
    }


def run_longfat(hosts, program, extra, seconds, trusted=True):
    server = hosts.server([program, "transfer", "serve", *(["--trusted"] if trusted else []),
                           "--listen", f"{hosts.address}:{PORT}", "--once"])
    wait_for_line(server, "ready")
    outcome = hosts.client([program, "transfer", "send", f"{hosts.address}:{PORT}", "--duration", f"{seconds}s",
                            "--cc", "reno", "--cc-receiver", "reno", "--json", *extra])
    finish(server)
    flow = outcome["flows"][0]
    kept = ("goodput_bps", "retransmitted_segments", "echo_count", "echo_p50_us", "echo_p99_us")
    return {key: flow[key] for key in kept}


def wait_for_line(server, word):
    for line in server.stdout:
        if word in line:
            return
    raise RuntimeError(f"the server ended before it said '{word}'")


def finish(server):
    server.stdout.read()
    if server.wait(timeout=20) != 0:
        raise RuntimeError(f"the server ended with {server.returncode}")
    # A port in TIME_WAIT must not be in the next one's way.
    time.sleep(0.1)


def measure(arguments, raw):
    names = list(VARIANTS)
    with Hosts(arguments.path) as hosts:
        for turn in range(arguments.rounds):
            run_id = f"{time.time_ns()}"
            for name in names[turn % len(names):] + names[:turn % len(names)]:
                program, extra = VARIANTS[name]
                if program == "iperf3":
                    result = run_iperf3(hosts, extra, arguments.seconds)
                else:
                    result = run_longfat(hosts, arguments.longfat, extra, arguments.seconds)
                line = {"round": run_id, "path": arguments.path, "variant": name, **result,
                        "load": os.getloadavg()[0]}
                print(f"{arguments.path:5} {name:26} {result['goodput_bps'] / 1e9:7.2f} Gbit/s", file=sys.stderr)
                raw.write(json.dumps(line) + "\n")
                raw.flush()


def measure_builds(arguments, raw):
    """Each round runs both builds, in turned order."""
    programs = {"this": arguments.longfat, "other": arguments.against}
    # A server trusted everybody before there was a word for it.
    knows = {name: "--trusted" in subprocess.run([program, "transfer", "serve", "--help"], capture_output=True,
                                                 text=True).stdout for name, program in programs.items()}
    with Hosts(arguments.path) as hosts:
        for turn in range(arguments.rounds):
            run_id = f"{time.time_ns()}"
            for name in list(programs)[::-1 if turn % 2 else 1]:
                result = run_longfat(hosts, programs[name], [], arguments.seconds, knows[name])
                print(f"{arguments.path:5} {name:26} {result['goodput_bps'] / 1e9:7.2f} Gbit/s", file=sys.stderr)
                raw.write(json.dumps({"round": run_id, "path": arguments.path, "variant": name,
                                      **result, "load": os.getloadavg()[0]}) + "\n")
                raw.flush()


def summarise_builds(folder, versions):
    """The medians of both, and of their ratios within rounds."""
    lines = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    text = [f"# {folder.name}", "", f"Linux {platform.release()}, {os.cpu_count()} CPUs. Two builds of longfat, in turn: "
            f"{versions}. Goodput in Gbit/s: median (quartiles).", ""]
    for path in sorted({line["path"] for line in lines}):
        rounds = {}
        for line in lines:
            if line["path"] == path:
                rounds.setdefault(line["round"], {})[line["variant"]] = line["goodput_bps"]
        whole = [found for found in rounds.values() if len(found) == 2]
        text += [f"## {path}: {len(whole)} rounds", "", "| | |", "|---|---|"]
        for name in ("this", "other"):
            low, middle, high = quartiles([found[name] / 1e9 for found in whole])
            text.append(f"| {name} | {middle:.1f} ({low:.1f}-{high:.1f}) |")
        low, middle, high = quartiles([found["this"] / found["other"] for found in whole])
        text += [f"| this / other | {middle:.3f} ({low:.3f}-{high:.3f}) |", ""]
    (folder / "summary.md").write_text("\n".join(text))
    print("\n".join(text))


def about():
    iperf3 = subprocess.run(["iperf3", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    return f"Linux {platform.release()}, {os.cpu_count()} CPUs, {iperf3}"


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def summarise(folder):
    """One table of medians and of ratios within rounds, with their quartiles."""
    lines = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    text = [f"# {folder.name}", "", about(), "",
            "Goodput in Gbit/s and ratio to iperf3 in the same round: median (quartiles).", ""]
    for path in sorted({line["path"] for line in lines}):
        rounds = {}
        for line in lines:
            if line["path"] == path:
                rounds.setdefault(line["round"], {})[line["variant"]] = line["goodput_bps"]
        whole = [found for found in rounds.values() if len(found) == len(VARIANTS)]
        text += [f"## {path}: {len(whole)} rounds", "", "| variant | Gbit/s | against | ratio |", "|---|---|---|---|"]
        for name in VARIANTS:
            low, middle, high = quartiles([found[name] / 1e9 for found in whole])
            row = f"| {name} | {middle:.1f} ({low:.1f}-{high:.1f}) |"
            base = BASELINE.get(name)
            if base:
                low, middle, high = quartiles([found[name] / found[base] for found in whole])
                row += f" {base} | {middle:.2f} ({low:.2f}-{high:.2f}) |"
            else:
                row += " | |"
            text.append(row)
        text.append("")
    (folder / "summary.md").write_text("\n".join(text))
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", choices=["lo", "veth"], default="lo")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--longfat", default=str(ROOT / "target/release/longfat"))
    parser.add_argument("--against", help="another build of longfat, in place of iperf3")
    parser.add_argument("--versions", default="", help="what the two builds are, for the summary")
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this folder again")
    arguments = parser.parse_args()
    if arguments.summary:
        return summarise(arguments.summary)
    day = datetime.date.today().isoformat()
    folder = HERE / "results" / (f"{day}-builds" if arguments.against else day)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "raw.jsonl", "a") as raw:
        (measure_builds if arguments.against else measure)(arguments, raw)
    if arguments.against:
        return summarise_builds(folder, arguments.versions)
    summarise(folder)


if __name__ == "__main__":
    main()
