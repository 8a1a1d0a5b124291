#!/usr/bin/env python3
"""`longfat analyze` beside tcptrace and tshark on the same file, in one run: packets per second and memory.

    bench/analyze/compare.py                       # captures real kernel traffic first, then compares
    bench/analyze/compare.py --file big.pcap       # compares on a capture there is
    bench/analyze/compare.py --rounds 3 --write    # medians of 3, kept under results/DATE
    bench/analyze/compare.py --beside OLD          # and beside another build of it, in the same rounds

The traffic is kernel TCP between two namespaces over veth without offloads: short and long flows until there are
enough packets (3 million unless --packets says otherwise), captured with tcpdump -s 96. tshark is slow: it gets the first
--tshark-packets of the file. Needs root, iproute2, ethtool, iperf3, tcpdump, tcptrace, tshark (with editcap), GNU time.
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

import peak

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGFAT = os.environ.get("LONGFAT", str(ROOT / "target/release/longfat"))


def run(*command, **options):
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)


def capture(path, packets):
    """Kernel traffic until the file has enough packets."""
    tag = f"lfcmp{os.getpid()}"
    sender, receiver = f"{tag}-s", f"{tag}-r"
    try:
        run("ip", "netns", "add", sender)
        run("ip", "netns", "add", receiver)
        run("ip", "-n", sender, "link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", receiver)
        for name, address in ((sender, "10.79.0.1/24"), (receiver, "10.79.0.2/24")):
            run("ip", "-n", name, "link", "set", "dev", "eth", "up")
            run("ip", "-n", name, "address", "add", address, "dev", "eth")
            run("ip", "netns", "exec", name, "ethtool", "-K", "eth", "tso", "off", "gso", "off", "gro", "off")
        servers = [
            subprocess.Popen(["ip", "netns", "exec", receiver, "iperf3", "-s", "-p", str(5300 + n)], stdout=subprocess.DEVNULL)
            for n in range(4)
        ]
        dump = subprocess.Popen(
            ["ip", "netns", "exec", sender, "tcpdump", "-i", "eth", "-s", "96", "-B", "131072", "-c", str(packets), "-w", path, "tcp"],
            stderr=subprocess.DEVNULL,
        )
        time.sleep(1)
        while dump.poll() is None:
            clients = [
                subprocess.Popen(
                    ["ip", "netns", "exec", sender, "iperf3", "-c", "10.79.0.2", "-p", str(5300 + n), "-t", "2", "-P", str(1 + 10 * n), "-b", "150M", "-C", cc],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )
                for n, cc in enumerate(("cubic", "reno", "cubic", "reno"))
            ]
            for client in clients:
                client.wait()
        for server in servers:
            server.send_signal(signal.SIGTERM)
            server.wait()
    finally:
        for name in (sender, receiver):
            subprocess.run(["ip", "netns", "del", name], check=False)


def timed(command):
    """Wall and processor seconds of one command."""
    start = time.monotonic()
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.monotonic() - start
    assert status == 0, f"{command} failed"
    return {"wall_s": wall, "cpu_s": usage.ru_utime + usage.ru_stime}


def peak_mb(command):
    """Peak memory of one command, in a run of its own: GNU time adds its own processor time."""
    with tempfile.NamedTemporaryFile("r") as file:
        run(*peak.watched(command, file))
        return peak.megabytes(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=pathlib.Path)
    parser.add_argument("--packets", type=int, default=3_000_000)
    parser.add_argument("--tshark-packets", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=pathlib.Path, action="append", default=[], metavar="PROGRAM", help="another build of longfat, or of the example `read`")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = args.file or pathlib.Path(scratch) / "traffic.pcap"
        if not args.file:
            os.chmod(scratch, 0o777)
            capture(path, args.packets)
        part = pathlib.Path(scratch) / "part.pcap"
        run("editcap", "-F", "nsecpcap", "-r", path, part, f"1-{args.tshark_packets}")
        rows, facts = measure(path, part, args)
    show(rows, facts, args)


def measure(path, part, args):
    told = json.loads(subprocess.check_output([LONGFAT, "analyze", "--json", path], stderr=subprocess.DEVNULL))
    packets, flows = told["capture"]["packets"], told["totals"]["flows"]
    tools = {
        "longfat analyze": ([LONGFAT, "analyze", path], packets),
        **{str(program): ([program, "analyze", path], packets) for program in args.beside},
        "tcptrace -lr": (["tcptrace", "-lr", path], packets),
        "tshark tcp.analysis": (["tshark", "-r", part, "-T", "fields", "-e", "tcp.analysis.ack_rtt", "-e", "tcp.analysis.retransmission"], args.tshark_packets),
    }
    run("cat", path)
    memory = {name: peak_mb(command) for name, (command, _) in tools.items()}
    rows = []
    for number in range(args.rounds):
        for name, (command, count) in tools.items():
            rows.append({"tool": name, "round": number, "packets": count, **timed(command), "memory_mb": memory[name]})
    facts = {"packets": packets, "flows": flows, "bytes": path.stat().st_size, "kernel": platform.release(), "load": os.getloadavg()}
    return rows, facts


def show(rows, facts, args):
    text = [f"# Speed, {datetime.date.today()}, kernel {facts['kernel']}, {os.cpu_count()} cores, load {facts['load'][0]:.1f}", ""]
    text += [f"{facts['packets']} packets, {facts['flows']} flows, {facts['bytes'] / 1e6:.0f} MB, snap 96; medians of {args.rounds}.", ""]
    text += ["| tool | M packets per CPU second | M packets per second | memory MB | times tcptrace | times tshark |", "|---|---|---|---|---|---|"]
    speed = {}
    for name in dict.fromkeys(row["tool"] for row in rows):
        mine = [row for row in rows if row["tool"] == name]
        middle = lambda of: statistics.median(of(row) for row in mine)
        speed[name] = (middle(lambda r: r["packets"] / r["cpu_s"]), middle(lambda r: r["packets"] / r["wall_s"]), middle(lambda r: r["memory_mb"]))
    for name, (cpu, wall, memory) in speed.items():
        text.append(
            f"| {name} | {cpu / 1e6:.2f} | {wall / 1e6:.2f} | {memory:.0f} | {cpu / speed['tcptrace -lr'][0]:.1f} | {cpu / speed['tshark tcp.analysis'][0]:.0f} |"
        )
    print("\n".join(text))
    if args.write:
        directory = HERE / "results" / datetime.date.today().isoformat()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "speed.md").write_text("\n".join(text) + "\n")
        (directory / "speed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [facts, *rows]))


if __name__ == "__main__":
    main()
