#!/usr/bin/env python3
"""`longfat relay` beside plain forwarding and HAProxy: speed, CPU, fairness of eight flows, latency under load.

    bench/relay/compare.py --rounds 3
    bench/relay/compare.py --rounds 3 --packets mtu
    bench/relay/compare.py --summary bench/relay/results/2026-01-31

Three network namespaces in a row, made here: client, relay, server. Each round runs every relay once, in turned
order, so that whatever else the machine does falls on all alike; only ratios within a round are compared. reno is
the default congestion control of all three: iperf3 sets its -C after connecting, and a socket that began under BBR
keeps pacing. `--packets mtu` turns segmentation and receive offloads off, so that packets have the size a wire's
have. CPU is the relay process's own (softirq work falls on whoever runs). Raw figures are appended to
results/DATE/raw.jsonl; summary.md beside it is made from them. Needs root, iproute2, ethtool, iperf3, haproxy.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
IPERF, ECHO, RELAYED = 5201, 5202, 1000
SERVER, RELAY = "10.79.2.2", "10.79.1.1"

HAPROXY = """
global
  nbthread {threads}
  maxconn 2000
  tune.pipesize 262144
defaults
  mode tcp
  option splice-request
  option splice-response
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen iperf
  bind {relay}:{iperf_in}
  server s {server}:{iperf}
listen echo
  bind {relay}:{echo_in}
  server s {server}:{echo}
"""

# What lies between: None forwards, a list is the arguments of `longfat relay`; `explicit` as HAProxy, on a port of its
# own (without the echo port, so without latency).
RELAYS = {
    "forwarding": None,
    "longfat": ["--intercept", "lan", "--forwarding"],
    "longfat --nap 1ms": ["--intercept", "lan", "--forwarding", "--nap", "1ms"],
    "longfat explicit": "explicit",
    "HAProxy splice": "haproxy",
}
# name: (arguments of the iperf3 client, whether latency is measured beside it)
LOADS = {
    "1 flow": ([], False),
    "8 flows": (["-P", "8"], False),
    "2 Gbit/s paced": (["-b", "2G"], True),
}


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


class Hosts:
    """client - relay - server."""

    def __init__(self, packets):
        tag = f"lfb{os.getpid()}"
        self.client, self.relay, self.server = (f"{tag}{end}" for end in "crs")
        self.packets = packets

    def __enter__(self):
        for name in (self.client, self.relay, self.server):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            self.sysctl(name, "net/ipv4/tcp_congestion_control", "reno")
        self.wire(self.client, "10.79.1.2/24", "lan", f"{RELAY}/24")
        self.wire(self.server, f"{SERVER}/24", "wan", "10.79.2.1/24")
        run("ip", "-n", self.client, "route", "add", "default", "via", RELAY)
        run("ip", "-n", self.server, "route", "add", "default", "via", "10.79.2.1")
        self.sysctl(self.relay, "net/ipv4/ip_forward", "1")
        return self

    def wire(self, host, address, port, relay_address):
        run("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self.relay)
        for name, device, own in ((host, "eth0", address), (self.relay, port, relay_address)):
            run("ip", "-n", name, "addr", "add", own, "dev", device)
            run("ip", "-n", name, "link", "set", device, "up")
            if self.packets == "mtu":
                run("ip", "netns", "exec", name, "ethtool", "-K", device, "tso", "off", "gso", "off", "gro", "off")

    def sysctl(self, name, key, value):
        run("ip", "netns", "exec", name, "sh", "-c", f"echo {value} > /proc/sys/{key}")

    def __exit__(self, *_):
        for name in (self.client, self.relay, self.server):
            subprocess.run(["ip", "netns", "del", name], check=False)


class Relay:
    """One relay running between the hosts; where a client has to connect."""

    def __init__(self, hosts, how, threads):
        self.hosts, self.how, self.threads, self.process = hosts, how, threads, None
        explicit = how in ("haproxy", "explicit")
        shift = RELAYED if explicit else 0
        self.address = RELAY if explicit else SERVER
        self.iperf, self.echo = IPERF + shift, ECHO + shift

    def __enter__(self):
        inside = ["ip", "netns", "exec", self.hosts.relay]
        if self.how == "haproxy":
            self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
            self.file.write(HAPROXY.format(threads=self.threads, relay=RELAY, server=SERVER, iperf=IPERF, echo=ECHO,
                                           iperf_in=self.iperf, echo_in=self.echo))
            self.file.flush()
            self.process = subprocess.Popen([*inside, "haproxy", "-db", "-f", self.file.name])
            time.sleep(1)
        elif self.how is not None:
            binary = str(ROOT / "target/release/longfat")
            to = ["--listen", f"{RELAY}:{self.iperf}", "--to", f"{SERVER}:{IPERF}"]
            arguments = to if self.how == "explicit" else self.how
            self.process = subprocess.Popen([*inside, binary, "relay", *arguments, "--workers", str(self.threads)],
                                            stdout=subprocess.PIPE, text=True)
            assert self.process.stdout.readline().startswith("ready")
        return self

    def cpu_s(self):
        if self.process is None:
            return 0.0
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def inside(name, work):
    """Runs `work` on a thread of its own in a network namespace, for good."""
    def enter():
        with open(f"/run/netns/{name}") as file:
            os.setns(file.fileno(), os.CLONE_NEWNET) if hasattr(os, "setns") else libc_setns(file.fileno())
        work()
    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return thread


def libc_setns(descriptor):
    import ctypes
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def echo_server(name):
    def serve():
        listener = socket.create_server((SERVER, ECHO))
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while text := connection.recv(64):
                    connection.sendall(text)
            except OSError:
                pass
    inside(name, serve)


def ping(name, relay, seconds, found):
    """Round trips of 64 bytes, one at a time, in microseconds."""
    def work():
        connection = socket.create_connection((relay.address, relay.echo))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter()
            connection.sendall(b"x" * 64)
            connection.recv(64)
            found.append((time.perf_counter() - start) * 1e6)
            time.sleep(0.001)
    return inside(name, work)


def measure(hosts, relay_name, load, seconds, threads):
    arguments, with_ping = LOADS[load]
    with Relay(hosts, RELAYS[relay_name], threads) as relay:
        pings = []
        with_ping = with_ping and relay.how != "explicit"
        thread = ping(hosts.client, relay, seconds, pings) if with_ping else None
        before = relay.cpu_s()
        output = json.loads(run("ip", "netns", "exec", hosts.client, "iperf3", "-c", relay.address, "-p",
                                str(relay.iperf), "-t", str(seconds), "-O", "1", "-J", *arguments))
        cpu_s = relay.cpu_s() - before
        if thread:
            thread.join()
        streams = [stream["receiver"]["bytes"] for stream in output["end"]["streams"]]
    received = output["end"]["sum_received"]
    # The omitted first second is relayed too.
    gigabytes = received["bytes"] / 1e9 * (seconds + 1) / seconds
    result = {"Gbit/s": received["bits_per_second"] / 1e9, "CPU s/GB": cpu_s / gigabytes}
    if len(streams) > 1:
        result["min/max"] = min(streams) / max(streams)
    if pings:
        pings.sort()
        result["ping p50 us"], result["ping p99 us"] = pings[len(pings) // 2], pings[len(pings) * 99 // 100]
    return result


def rounds(options, out):
    names = [name for name in RELAYS if not options.only or name in options.only]
    with Hosts(options.packets) as hosts:
        echo_server(hosts.server)
        server = subprocess.Popen(["ip", "netns", "exec", hosts.server, "iperf3", "-s"], stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        try:
            for number in range(options.rounds):
                turned = names[number % len(names):] + names[:number % len(names)]
                for load in options.loads or LOADS:
                    for name in turned:
                        figures = measure(hosts, name, load, options.seconds, options.threads)
                        row = {"round": number, "packets": options.packets, "relay": name, "load": load,
                               "seconds": options.seconds, "threads": options.threads,
                               "kernel": platform.release(), **figures}
                        out.write(json.dumps(row) + "\n")
                        out.flush()
                        print(f"{load:16} {name:18} " + "  ".join(f"{k} {v:.3g}" for k, v in figures.items()))
        finally:
            server.terminate()
            server.wait()


def summarise(folder):
    rows = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    columns = ["Gbit/s", "CPU s/GB", "min/max", "ping p50 us", "ping p99 us"]
    lines = [f"# {folder.name}", "", "Medians over the rounds; min/max is the least over the greatest of eight flows.",
             "", "| packets | load | relay | rounds | " + " | ".join(columns) + " |",
             "|" + "---|" * (4 + len(columns))]
    keys = sorted({(r["packets"], r["load"], r["relay"]) for r in rows}, key=lambda k: (k[0], list(LOADS).index(k[1]),
                                                                                       list(RELAYS).index(k[2])))
    for key in keys:
        same = [r for r in rows if (r["packets"], r["load"], r["relay"]) == key]
        cells = []
        for column in columns:
            values = [r[column] for r in same if column in r]
            cells.append(f"{statistics.median(values):.3g}" if values else "")
        lines.append(f"| {' | '.join(key)} | {len(same)} | {' | '.join(cells)} |")
    (folder / "summary.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--packets", choices=["gso", "mtu"], default="gso")
    parser.add_argument("--only", action="append", choices=list(RELAYS))
    parser.add_argument("--loads", action="append", choices=list(LOADS))
    parser.add_argument("--dry", action="store_true", help="keep no results")
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this results folder")
    options = parser.parse_args()
    if options.summary:
        return summarise(options.summary)
    if options.dry:
        with open(os.devnull, "w") as out:
            return rounds(options, out)
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "raw.jsonl", "a") as out:
        rounds(options, out)
    summarise(folder)


if __name__ == "__main__":
    main()
