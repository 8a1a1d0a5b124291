#!/usr/bin/env python3
"""What several tools say of one path with cross traffic: ImTCP's two estimators, BBR's bandwidth, iperf3.

    bench/avail/compare.py                            # 100 Mbit/s, 30 ms, Poisson cross traffic of 30 and 70 Mbit/s
    bench/avail/compare.py --law onoff --seconds 20 --rounds 3

Two hosts and an emulated link are namespaces made here. One tool at a time, each beside the same cross traffic (same seed);
what was free is the link's rate less what the cross traffic's receiver counted, headers included, after the first
three seconds. iperf3 runs alone, too: that is the truth of the capacity. All figures count IP headers.
Needs root, iproute2, iperf3 and a built longfat (LONGFAT names another than target/release/longfat).
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
LONGFAT = os.environ.get("LONGFAT", str(HERE.parent.parent / "target/release/longfat"))
RATE_MBPS = 100
DATAGRAM = 1222
TCP_WIRE = 1500 / 1448
SKIP_S = 3


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def within(name, *command, **options):
    return subprocess.Popen(["ip", "netns", "exec", name, *command], text=True, **options)


class Bed:
    """Two hosts, an emulated path of 100 Mbit/s and 30 ms between them, a server of each kind."""

    def __enter__(self):
        tag = f"lfavail{os.getpid()}"
        self.sender, self.receiver, self.link = (f"{tag}-{role}" for role in ("sender", "receiver", "link"))
        self.started = []
        for name in (self.sender, self.receiver, self.link):
            run("ip", "netns", "add", name)
        self.host(self.sender, "a", "10.78.0.1/24")
        self.host(self.receiver, "b", "10.78.0.2/24")
        self.directory = tempfile.TemporaryDirectory()
        spec = pathlib.Path(self.directory.name, "link.toml")
        spec.write_text(
            f'rate = "{RATE_MBPS}Mbit"\ndelay = "15ms"\ncoalesce = "0s"\n'
            'queue = { discipline = "droptail", limit = "375KB" }\n'
        )
        drive = [LONGFAT, "link", "drive", "--plan", str(spec), "--a", "a", "--b", "b"]
        self.start(self.link, *drive, ready="ready\n")
        serve = [LONGFAT, "transfer", "serve", "--listen"]
        self.start(self.receiver, *serve, "[::]:5201")
        self.start(self.receiver, *serve, "[::]:5202")
        self.start(self.receiver, "iperf3", "-s", "-p", "5301")
        time.sleep(0.5)
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.terminate()
            process.wait()
        for name in (self.sender, self.receiver, self.link):
            subprocess.run(["ip", "netns", "del", name], check=False)
        self.directory.cleanup()

    def start(self, name, *command, ready=None):
        process = within(name, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.started.append(process)
        if ready:
            assert process.stdout.readline() == ready, command

    def host(self, name, end, address):
        veth = ["mtu", "1500", "type", "veth", "peer", "name", "eth", "mtu", "1500", "netns", name]
        run("ip", "-n", self.link, "link", "add", "name", end, *veth)
        run("ip", "-n", self.link, "link", "set", "dev", end, "up")
        run("ip", "-n", name, "link", "set", "dev", "eth", "up")
        run("ip", "-n", name, "address", "add", address, "dev", "eth")
        run("ip", "netns", "exec", name, "ethtool", "-K", "eth", "tso", "off", "gso", "off", "gro", "off")
        # iperf3 sets its congestion control after connecting: a socket that began under BBR would keep its pacing.
        run("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")

    def cross(self, mbps, law, seconds):
        """Starts the cross traffic; its rate counts headers."""
        payload = round(mbps * 1e6 * DATAGRAM / (DATAGRAM + 28))
        self.cross_samples = pathlib.Path(self.directory.name, "cross.jsonl")
        return within(
            self.sender, LONGFAT, "transfer", "send", "10.78.0.2:5202", "--udp", "--rate", f"{payload}bit",
            "--arrivals", law, "--datagram", f"{DATAGRAM}B", "--duration", f"{seconds}s",
            "--samples", str(self.cross_samples), stdout=subprocess.DEVNULL,
        )

    def free(self, seconds):
        """What the cross traffic left, in Mbit/s."""
        rows = [row for row in records(self.cross_samples) if row["type"] == "interval"]
        first = min(row["time_us"] - row["duration_us"] for row in rows)
        kept = [row for row in rows if SKIP_S * 1e6 <= row["time_us"] - first <= seconds * 1e6]
        span_us = sum(row["duration_us"] for row in kept)
        return RATE_MBPS - sum(row["bytes"] for row in kept) * 8 * (DATAGRAM + 28) / DATAGRAM / span_us

    def transfer(self, cc, seconds):
        """Median of what the connection held for its path, and its goodput with headers, in Mbit/s."""
        samples = pathlib.Path(self.directory.name, "measured.jsonl")
        send = [LONGFAT, "transfer", "send", "10.78.0.2:5201", "--cc", cc, "--duration", f"{seconds}s"]
        assert within(self.sender, *send, "--samples", str(samples), stdout=subprocess.DEVNULL).wait() == 0
        rows = list(records(samples))
        found = [row for row in rows if row["type"] == "avail"]
        first = min(row["time_us"] for row in rows if row["type"] == "interval")
        held = [row["avail_bps"] / 1e6 for row in found if row["time_us"] > first + SKIP_S * 1e6]
        goodput = next(row["goodput_bps"] for row in rows if row["type"] == "flow") * TCP_WIRE / 1e6
        return (statistics.median(held) if held else None), goodput

    def iperf3(self, seconds):
        client = ["iperf3", "-c", "10.78.0.2", "-p", "5301", "-t", str(seconds - SKIP_S), "-O", str(SKIP_S), "-J"]
        process = within(self.sender, *client, stdout=subprocess.PIPE)
        said = json.loads(process.communicate()[0])
        return said["end"]["sum_received"]["bits_per_second"] * TCP_WIRE / 1e6


def records(path):
    return (json.loads(line) for line in path.read_text().splitlines())


def beside(bed, args, mbps, tool):
    cross = bed.cross(mbps, args.law, args.seconds + 2)
    time.sleep(1)
    said, goodput = tool()
    assert cross.wait() == 0
    return {"cross": mbps, "free": bed.free(args.seconds), "said": said, "goodput": goodput}


def measure(bed, args):
    seconds = args.seconds
    tools = {
        "imtcp": lambda: bed.transfer("lf_imtcp", seconds),
        "bbr": lambda: bed.transfer("bbr", seconds),
        "iperf3": lambda: (bed.iperf3(seconds),) * 2,
    }
    for _ in range(args.rounds):
        yield {"tool": "iperf3, alone", "cross": 0, "free": RATE_MBPS, "said": (alone := bed.iperf3(seconds)), "goodput": alone}
        for mbps in args.cross:
            for name, tool in tools.items():
                yield {"tool": name, **beside(bed, args, mbps, tool)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", default="poisson", choices=["constant", "poisson", "onoff", "pareto"])
    parser.add_argument("--cross", type=int, nargs="+", default=[30, 70], help="Mbit/s of cross traffic, with headers")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    args = parser.parse_args()
    now = datetime.datetime.now(datetime.timezone.utc)
    print(f"| tool | cross traffic ({args.law}) | free | says | its own share |\n|---|---|---|---|---|")
    rows = []
    with Bed() as bed:
        for row in measure(bed, args):
            rows.append(row)
            said = "nothing" if row["said"] is None else f"{row['said']:.1f}"
            print(f"| {row['tool']} | {row['cross']} | {row['free']:.1f} | {said} | {row['goodput']:.1f} |", flush=True)
    if not args.dry:
        directory = HERE / "results" / now.date().isoformat()
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "raw.jsonl").open("a") as raw:
            raw.write(json.dumps({"date": now.isoformat(), "kernel": os.uname().release, **vars(args)}) + "\n")
            raw.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
