#!/usr/bin/env python3
"""The link driver under one kernel TCP flow: goodput, processor share of the driver, lateness of departures.

    bench/link/measure.py                      # three paths x coalesce 0 and 50us x reno and cubic, 3 rounds
    bench/link/measure.py --path '1Gbit 14.2ms' --coalesce 50us --cc cubic --rounds 1
    bench/link/measure.py --summary bench/link/results/2026-01-31

Two hosts and a link are namespaces made here; the flow is iperf3's, its congestion control set on the route, so that
it holds from the SYN on (iperf3's own -C comes after connecting, and a socket that began under BBR keeps pacing).
The driver's processor share includes what the kernel does for the receiver in the softirq of each frame sent.
Raw figures are appended to results/DATE/raw.jsonl; summary.md beside it is made from them. Needs root, iproute2,
ethtool and iperf3.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGFAT = os.environ.get("LONGFAT", str(ROOT / "target/release/longfat"))
PATHS = ["100Mbit 15ms", "300Mbit 40ms", "1Gbit 14.2ms"]


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Bed:
    """Two hosts, a link between them."""

    def __enter__(self):
        tag = f"lfbench{os.getpid()}"
        self.sender, self.receiver, self.link = (f"{tag}-{role}" for role in ("sender", "receiver", "link"))
        for name in (self.sender, self.receiver, self.link):
            run("ip", "netns", "add", name)
        self.host(self.sender, "a", "10.77.0.1/24")
        self.host(self.receiver, "b", "10.77.0.2/24")
        return self

    def __exit__(self, *_):
        for name in (self.sender, self.receiver, self.link):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def host(self, name, end, address):
        veth = ["mtu", "1500", "type", "veth", "peer", "name", "eth", "mtu", "1500", "netns", name]
        run("ip", "-n", self.link, "link", "add", "name", end, *veth)
        run("ip", "-n", self.link, "link", "set", "dev", end, "up")
        run("ip", "-n", name, "link", "set", "dev", "eth", "up")
        run("ip", "-n", name, "address", "add", address, "dev", "eth")
        run("ip", "netns", "exec", name, "ethtool", "-K", "eth", "tso", "off", "gso", "off", "gro", "off")
        for buffer in ("tcp_wmem=4096 65536 134217728", "tcp_rmem=4096 131072 134217728"):
            run("ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{buffer}")

    def dropped_at_sender(self):
        """Frames lost between the sending host and the driver: none of its ring's business, so counted here."""
        table = subprocess.run(
            ["ip", "-n", self.sender, "-s", "-j", "link", "show", "dev", "eth"], check=True, capture_output=True
        )
        return json.loads(table.stdout)[0]["stats64"]["tx"]["dropped"]

    def measure(self, path, coalesce, cc, seconds):
        rate, delay = path.split()
        run("ip", "-n", self.sender, "route", "replace", "10.77.0.0/24", "dev", "eth", "congctl", cc)
        before = self.dropped_at_sender()
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as spec:
            spec.write(f'rate = "{rate}"\ndelay = "{delay}"\ncoalesce = "{coalesce}"\n')
            spec.flush()
            driver = subprocess.Popen(
                ["ip", "netns", "exec", self.link, LONGFAT, "link", "drive", "--plan", spec.name]
                + ["--a", "a", "--b", "b", "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            assert driver.stdout.readline() == "ready\n"
        flow = self.flow(seconds)
        driver.send_signal(signal.SIGTERM)
        link = json.loads(driver.communicate()[0])
        return {
            "path": path, "coalesce": coalesce, "cc": cc, "seconds": seconds,
            "mbit": flow["sum_received"]["bits_per_second"] / 1e6,
            "retransmits": flow["sum_sent"]["retransmits"],
            "dropped_before_link": self.dropped_at_sender() - before,
            "link": link,
        }

    def flow(self, seconds):
        server = subprocess.Popen(
            ["ip", "netns", "exec", self.receiver, "iperf3", "-s", "-1", "-p", "5301"], stdout=subprocess.DEVNULL
        )
        time.sleep(0.3)
        client = ["iperf3", "-c", "10.77.0.2", "-p", "5301", "-t", str(seconds), "-O", "2", "-J"]
        done = subprocess.run(["ip", "netns", "exec", self.sender, *client], check=True, capture_output=True)
        server.wait()
        return json.loads(done.stdout)["end"]


def summarise(directory):
    lines = (directory / "raw.jsonl").read_text().splitlines()
    head, *rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if "path" in row]
    text = [f"# Link driver, {head['date']}, kernel {head['kernel']}, {head['cores']} cores", ""]
    text += ["Medians of the rounds; lateness in us; in brackets how many rounds the driver itself called punctual.", ""]
    text += ["| path (one way) | coalesce | cc | goodput Mbit/s | driver CPU | late p50 | late p99 | punctual |"]
    text += ["|---|---|---|---|---|---|---|---|"]
    keys = dict.fromkeys((row["path"], row["coalesce"], row["cc"]) for row in rows)
    for key in keys:
        group = [row for row in rows if (row["path"], row["coalesce"], row["cc"]) == key]
        middle = lambda of: statistics.median(of(row) for row in group)
        forward = lambda field: middle(lambda row: row["link"]["forward"][field])
        punctual = sum(row["link"]["forward"]["punctual"] and row["link"]["backward"]["punctual"] for row in group)
        text.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {middle(lambda row: row['mbit']):.1f}"
            f" | {100 * middle(lambda row: row['link']['cpu_share']):.0f} % | {forward('late_p50_us'):.0f}"
            f" | {forward('late_p99_us'):.0f} | {punctual}/{len(group)} |"
        )
    (directory / "summary.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", action="append", help="'RATE ONE-WAY-DELAY'; may be repeated")
    parser.add_argument("--coalesce", action="append")
    parser.add_argument("--cc", action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this directory")
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    args = parser.parse_args()
    if args.summary:
        return summarise(args.summary)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    directory = HERE / "results" / date
    kept = directory / "raw.jsonl"
    if not args.dry:
        directory.mkdir(parents=True, exist_ok=True)
        if not kept.exists():
            head = {"date": date, "kernel": platform.release(), "cores": os.cpu_count()}
            kept.write_text(json.dumps(head) + "\n")
    cases = [
        (path, coalesce, cc)
        for path in args.path or PATHS
        for coalesce in args.coalesce or ["0s", "50us"]
        for cc in args.cc or ["reno", "cubic"]
    ]
    with Bed() as bed:
        for _ in range(args.rounds):
            for case in cases:
                row = bed.measure(*case, args.seconds)
                link, way = row["link"], row["link"]["forward"]
                print(
                    f"{case[0]:13} {case[1]:5} {case[2]:6} {row['mbit']:7.1f} Mbit/s  cpu {100 * link['cpu_share']:3.0f} %"
                    f"  late p50 {way['late_p50_us']} p99 {way['late_p99_us']} max {way['late_max_us']} us"
                    f"  stalls {link['stalls']}  overruns {way['overrun_packets']}+{link['backward']['overrun_packets']}"
                    f"  before link {row['dropped_before_link']}  drops {way['dropped_packets']}"
                    f"  retransmits {row['retransmits']}  queue {way['queue_max_bytes'] / 1e3:.0f} KB"
                    f"  ack p99 {link['backward']['late_p99_us']}",
                    flush=True,
                )
                if not args.dry:
                    with kept.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    if not args.dry:
        summarise(directory)


if __name__ == "__main__":
    main()
