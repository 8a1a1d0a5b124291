#!/usr/bin/env python3
"""`longfat capture` beside tcpdump and dumpcap: what each loses, what it costs the traffic, what it costs itself.

    bench/capture/compare.py                  # table on standard output
    bench/capture/compare.py --rounds 9 --seconds 4
    bench/capture/compare.py --write          # raw figures and table into results/DATE/

One TCP connection as fast as it goes between two namespaces, segments of MTU size (gso_max_segs 1, offloads off: all
programs see the same packets), its sender's interface captured in both directions, 96 octets or the headers of each packet,
into memory (/dev/shm). Each round has every program once and the traffic alone, in an order that turns; ratios are taken
within a round, and the table has their median and range.

  loss      packets of the interface (its own counters) that are not in the file
  speed     of the traffic, over its speed alone in the same round
  own CPU   of the capturing process, user and system, per packet in the file, from when it has begun (loading and checking the
            BPF programs, or allocating a ring, comes before that and is in the raw figures)
  all CPU   of the whole machine per packet of the interface, over the same without capture: other programs that run meanwhile
            disturb it

Needs root, iproute2, ethtool, tcpdump, dumpcap (Debian: tshark) and a release build; programs that are not there are left out, and named.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NEAR, FAR, PORT = "10.79.0.1", "10.79.0.2", 5001


def run(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


class Bed:
    """Two hosts and a cable."""

    def __init__(self):
        self.near, self.far = (f"lfbc{os.getpid()}-{end}" for end in "nf")

    def __enter__(self):
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self):
        for name in (self.near, self.far):
            run("ip", "netns", "add", name)
        run("ip", "-n", self.near, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", self.far)
        for name, address in ((self.near, NEAR), (self.far, FAR)):
            run("ip", "netns", "exec", name, "ethtool", "-K", "eth0", "tso", "off", "gso", "off", "gro", "off")
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "gso_max_segs", "1", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")

    def __exit__(self, *_):
        for name in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def packets(self):
        text = run("ip", "netns", "exec", self.near, "cat", "/proc/net/dev")
        fields = next(line.split(":")[1].split() for line in text.splitlines() if line.strip().startswith("eth0:"))
        return int(fields[1]) + int(fields[9])

    def traffic(self, seconds):
        """Octets per second that one connection gets; sender and receiver are processes of their own."""
        inside = lambda name, *words: subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True
        )
        started = []
        try:
            started.append(receiver := inside(self.far, "receive"))
            if receiver.stdout.readline() != "ready\n":
                raise SystemExit("the receiver of the traffic did not begin")
            started.append(sender := inside(self.near, "send", str(seconds)))
            took, octets = map(float, receiver.communicate(timeout=seconds + 20)[0].split())
            sender.wait(10)
        finally:
            for process in started:
                process.kill()
                process.wait()
        return octets / took


def send(seconds):
    with socket.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        stream.connect((FAR, PORT))
        block, end = bytes(1 << 18), time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(block)


def receive():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((FAR, PORT))
        server.listen()
        print("ready", flush=True)
        stream, _ = server.accept()
        buffer, octets, started = bytearray(1 << 18), 0, time.monotonic()
        while got := stream.recv_into(buffer):
            octets += got
        print(time.monotonic() - started, octets)


class Capturer:
    """A program that captures until SIGINT, and the word by which it says that it has begun."""

    def __init__(self, name, command, ready):
        self.name, self.command, self.ready = name, command, ready

    def __call__(self, bed, file):
        words = [word.format(netns=bed.near, file=file) for word in self.command]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            said = ""
            while self.ready not in said:
                line = process.stderr.readline()
                if not line:
                    raise SystemExit(f"{self.name} did not begin: {said}")
                said += line
            time.sleep(0.3)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process


def capturers(longfat):
    inside = ["ip", "netns", "exec", "{netns}"]
    return [
        Capturer("longfat", [longfat, "capture", "--netns", "{netns}", "-i", "eth0", "-o", "{file}"], "capturing on"),
        Capturer("tcpdump", [*inside, "tcpdump", "-i", "eth0", "-s", "96", "-w", "{file}", "-Z", "root"], "listening on"),
        Capturer("dumpcap", [*inside, "dumpcap", "-i", "eth0", "-s", "96", "-q", "-w", "{file}"], "File:"),
    ]


def machine_cpu():
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measure(bed, capturer, seconds, longfat):
    """One program, or none, under traffic."""
    file = pathlib.Path(f"/dev/shm/lfbc{os.getpid()}.pcap")
    process = capturer(bed, file) if capturer else None
    try:
        idle = own_cpu(process) if process else 0
        before, cpu = bed.packets(), machine_cpu()
        speed = bed.traffic(seconds)
        cpu, packets = machine_cpu() - cpu, bed.packets() - before
        found = {"program": capturer.name if capturer else "none", "bytes_per_s": speed, "packets": packets, "all_cpu_s": cpu}
        if process:
            time.sleep(0.2)
            used = ended(process) - idle
            total = json.loads(run(longfat, "analyze", "--json", "--most-flows", "1", str(file)))["capture"]["packets"]
            # What passed before and after the traffic (address resolution and the like) is in the file as well.
            found |= {"captured": total, "lost": max(0, packets - total), "own_cpu_s": used, "start_cpu_s": idle}
        return found
    finally:
        if process and process.returncode is None:
            process.kill()
            process.wait()
        file.unlink(missing_ok=True)


def own_cpu(process):
    """What a process has used so far: what it took to begin is told apart from what packets cost."""
    text = pathlib.Path(f"/proc/{process.pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ended(process):
    """Ends a capturer ('ip netns exec' has become the program); the processor time it used."""
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def ratios(rounds, name):
    """Of a program, within each round."""
    for figures in rounds:
        alone, own = figures["none"], figures[name]
        per_packet = lambda one: one["all_cpu_s"] / one["packets"]
        yield {
            "loss": own["lost"] / own["packets"],
            "speed": own["bytes_per_s"] / alone["bytes_per_s"],
            "own_ns": own["own_cpu_s"] * 1e9 / max(own["captured"], 1),
            "all": per_packet(own) / per_packet(alone),
        }


def spread(values, form):
    return f"{format(statistics.median(values), form)} ({format(min(values), form)} to {format(max(values), form)})"


def table(rounds, names):
    rates = [figures["none"]["packets"] for figures in rounds]
    lines = [
        f"{len(rounds)} rounds on {platform.release()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; "
        f"traffic alone: {statistics.median(rates):.0f} packets in a run. Median (least to greatest).",
        "",
        "| program | loss | speed of the traffic | own CPU, ns per packet | all CPU |",
        "|---|---|---|---|---|",
    ]
    for name in names:
        found = list(ratios(rounds, name))
        column = lambda key, form: spread([one[key] for one in found], form)
        lines.append(
            f"| {name} | {column('loss', '.2%')} | {column('speed', '.2f')} | {column('own_ns', '.0f')} | {column('all', '.2f')} |"
        )
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["send"]:
        return send(float(sys.argv[2]))
    if sys.argv[1:2] == ["receive"]:
        return receive()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--program", default=os.environ.get("LONGFAT", str(ROOT / "target/release/longfat")))
    parser.add_argument("--write", action="store_true", help="into results/DATE/")
    args = parser.parse_args()
    there = [one for one in capturers(args.program) if one.name == "longfat" or shutil.which(one.name)]
    for one in capturers(args.program):
        if one.name not in [other.name for other in there]:
            print(f"compare.py: {one.name} is not installed and is left out", file=sys.stderr)
    rounds = []
    with Bed() as bed:
        bed.traffic(0.5)
        for number in range(args.rounds):
            order = [None, *there]
            turn = number % len(order)
            figures = {}
            for capturer in order[turn:] + order[:turn]:
                one = measure(bed, capturer, args.seconds, args.program)
                figures[one["program"]] = one
            rounds.append(figures)
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    text = table(rounds, [one.name for one in there])
    print(text)
    if args.write:
        folder = HERE / "results" / datetime.date.today().isoformat()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "compare.json").write_text(json.dumps(rounds, indent=1) + "\n")
        (folder / "compare.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
