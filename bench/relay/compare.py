#!/usr/bin/env python3
"""`longfat relay` beside plain forwarding, HAProxy, nginx and socat: speed, CPU, fairness of eight flows, latency under
load, how long bytes wait before a slow path, new connections, memory of idle ones.

    bench/relay/compare.py                                  every row, three rounds (about 35 minutes)
    bench/relay/compare.py --packets mtu --loads "8 flows"  some of them
    bench/relay/compare.py --summary bench/relay/results/2026-01-31

Three network namespaces in a row, made here: client, relay, server. Each round runs every relay once, in an order of its
own and between hosts of its own, so that whatever else the machine does falls on all alike; only ratios within a round
are compared. reno is the default congestion control of all three: iperf3 sets its -C after connecting, and a socket that
began under BBR keeps pacing. Packets of `mtu` are those of a wire: segmentation and receive offloads are off.

CPU is the relay process's own; what the kernel does for it in softirqs falls on whoever runs at that moment, so on a
machine that is otherwise idle `machine s/GB` is the truer figure: busy time of all processors, clients and servers
included, which are the same for all. Raw figures are appended to results/DATE/raw.jsonl; summary.md beside it is made
from them, with the targets: ratios to the best peer of each row, within a round, and their median. A new connection
sends one byte, gets one back and closes; its time is from connect() to that byte, because an early accept makes
connect() alone say nothing. Before a slow path (40 Mbit/s, made with tc's tbf behind every relay) the age of each byte is taken as it
arrives, from its being written: the sender's own buffer is in it, which grows with the window it is given. Needs root, iproute2, ethtool, iperf3, haproxy, nginx with its stream module
(libnginx-mod-stream) and socat.

Exit codes: 0 all was measured; 1 some measurement failed, which the summary lists with its reason; 2 usage.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import platform
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
IPERF, ECHO, ANSWER, KEEP, AGE, FETCH, STORE, RELAYED = 5201, 5202, 5203, 5204, 5205, 5206, 5207, 1000
PORTS = (IPERF, ECHO, ANSWER, KEEP, AGE, FETCH, STORE)
# Beyond what a measurement takes, until it counts as failed: a relay that hangs must not stop the others.
HANGING_S = 120
# A path that is slower than any relay, and what its queue holds: 20 ms.
SLOW_PATH = ("rate", "40mbit", "burst", "16k", "limit", "100k")
AGED_BYTES = 4096
# Connections of the load "mixed": how many, and their bytes. 95 % carry less than 100 KB, and 5 % nine tenths of all.
SMALL, SMALL_BYTES, LARGE, LARGE_BYTES = 190, (1_000, 99_000), 10, (10_000_000, 12_000_000)
AT_ONCE, BLOCK = 16, bytes(1 << 20)
# Of the load "8 clients"; each is a process, ready within so many seconds.
CLIENTS, READY_S = 8, 1
CLIENT = """
import socket, sys, time
address, port, begin, end = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
time.sleep(max(begin - time.monotonic(), 0))
count = 0
while time.monotonic() < end:
    with socket.create_connection((address, port)) as connection:
        connection.sendall(b"x")
        if not connection.recv(1):
            sys.exit("a connection ended in place of an answer")
    count += 1
print(count)
"""
# Of the load "released": enough to be stepped into, a pause to be left in, and less than would be stepped into again.
ADOPTED_BYTES, PAUSE_S, RELEASED_BYTES = 4_000_000_000, 3, 900_000_000
# Less processor time than any relay takes for a gigabyte, or a connection: it was not relayed.
LEAST_S_PER_GB, LEAST_US_PER_CONNECTION = 0.005, 2
# Idle connections, where the descriptor limit allows them to every one of the relays; else fewer.
IDLE, IDLE_DESCRIPTORS, FEWER_IDLE = 10_000, 50_000, 4_000
SERVER, RELAY = "10.79.2.2", "10.79.1.1"

HAPROXY = """
global
  nbthread {threads}
  maxconn {most}
  tune.pipesize 262144
  tune.bufsize {bufsize}
defaults
  mode tcp
  {splice}
  timeout connect 5s
  timeout client 60s
  timeout server 60s
"""
HAPROXY_LISTEN = """
listen port{port}
  bind {relay}:{inside} backlog 4096
  server s {server}:{port}
"""

NGINX = """
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off; pid {pid}; error_log /dev/null; worker_processes {threads}; worker_rlimit_nofile {descriptors};
events {{ worker_connections 24000; }}
stream {{ proxy_buffer_size 256k; {servers} }}
"""

# What lies between: None forwards, a list is the arguments of `longfat relay`; `explicit` as HAProxy, on ports of its own.
RELAYS = {
    "forwarding": None,
    "longfat": ["--intercept", "lan", "--forwarding"],
    "longfat queue off": ["--intercept", "lan", "--forwarding", "--queue-target", "off"],
    "longfat --coalesce 0": ["--intercept", "lan", "--forwarding", "--coalesce", "0"],
    # Windows as wide as the peers may have, whose buffers the kernel lets grow.
    "longfat wide": ["--intercept", "lan", "--forwarding", "--coalesce", "0", "--buffer-client", "8MiB", "--notsent-lowat", "8MiB"],
    "longfat explicit": "explicit",
    "longfat after-server": "after-server",
    "longfat end-to-end": "end-to-end",
    # Watched from end to end: what is adopted, and what never comes so far.
    "longfat adopt": "adopt",
    "longfat watch": "watch",
    # The same by every key there is; and adopted flows that would be left in a pause.
    "longfat watch all": "watch all",
    "longfat release": "release",
    # Adopted, and an end is told what the other end has acknowledged.
    "longfat acknowledge": "acknowledge",
    "HAProxy splice": "haproxy",
    "HAProxy copy": "haproxy-copy",
    "nginx 256k": "nginx",
    "socat 256k": "socat",
}
# Those that clients connect to.
EXPLICIT = ("explicit", "haproxy", "haproxy-copy", "nginx", "socat")
# When those are stepped into that are watched: keys of the relay's file.
ADOPT = {
    "adopt": ["adopt_after = '1MB'"],
    # What the load "released" sends after its pause is too little to be stepped into again.
    "release": ["adopt_after = '1GB'", "release_after = '1s'"],
    "acknowledge": ["adopt_after = '1MB'", "acknowledge = 'end-to-end'"],
    "watch": ["adopt_after = '1000TB'"],
    "watch all": ["adopt_after = '1B'", "adopt_rate = '1Gbit'", "adopt_rtt = '59s'", "adopt_losses = 0.5"],
}
# name: (arguments of the iperf3 client, whether latency is measured beside it)
LOADS = {
    "1 flow": ([], False),
    "8 flows": (["-P", "8"], False),
    "2 Gbit/s paced": (["-b", "2G"], True),
    "40 Mbit/s path": None,
    "connections": None,
    "idle": None,
    "8 clients": None,
    "mixed": None,
    "released": None,
}
# Paths and ways of their own: paired.py measures these.
PAIRED_ONLY = ("8 clients", "mixed", "released")


def run(*command, **more):
    return subprocess.run(command, check=True, capture_output=True, text=True, **more).stdout


class Hosts:
    """client - relay - server; with a delay `longfat link drive` stands between relay and server, whose hosts then send
    single segments, as to a wire."""

    def __init__(self, packets, number="", delay_ms=0, link_program=ROOT / "target/release/longfat"):
        tag = f"lfb{os.getpid()}{number}"
        self.client, self.relay, self.server, self.path = (f"{tag}{end}" for end in "crsp")
        self.packets, self.delay_ms, self.link_program = packets, delay_ms, link_program
        self.names = [self.client, self.relay, self.server, *([self.path] if delay_ms else [])]
        self.link = None

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            self.sysctl(name, "net/ipv4/tcp_congestion_control", "reno")
            # So that thousands of connections a second do not run out of ports, which would be measured instead.
            self.sysctl(name, "net/ipv4/tcp_tw_reuse", "1")
            self.sysctl(name, "net/ipv4/ip_local_port_range", "10000 65000")
        self.wire(self.client, "10.79.1.2/24", "lan", f"{RELAY}/24")
        if self.delay_ms:
            self.far_server()
        else:
            self.wire(self.server, f"{SERVER}/24", "wan", "10.79.2.1/24")
        run("ip", "-n", self.client, "route", "add", "default", "via", RELAY)
        run("ip", "-n", self.server, "route", "add", "default", "via", "10.79.2.1")
        self.sysctl(self.relay, "net/ipv4/ip_forward", "1")
        self.sysctl(self.relay, "net/ipv6/conf/all/forwarding", "1")

    def far_server(self):
        for host, device, address, end in ((self.relay, "wan", "10.79.2.1/24", "a"), (self.server, "eth0", f"{SERVER}/24", "b")):
            run("ip", "-n", host, "link", "add", device, "type", "veth", "peer", "name", end, "netns", self.path)
            run("ip", "-n", host, "addr", "add", address, "dev", device)
            for name, port in ((host, device), (self.path, end)):
                run("ip", "-n", name, "link", "set", "dev", port, "up")
                run("ip", "netns", "exec", name, "ethtool", "-K", port, "tso", "off", "gso", "off", "gro", "off")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as plan:
            plan.write(f"rate = '1Gbit'\ndelay = '{self.delay_ms / 2}ms'\n")
            plan.flush()
            self.link = subprocess.Popen(["ip", "netns", "exec", self.path, str(self.link_program), "link", "drive", "--plan",
                                          plan.name, "--a", "a", "--b", "b"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if (line := self.link.stdout.readline().strip()) != "ready":
                raise RuntimeError(f"{self.link_program} link drive, in place of being ready, said: {line or 'nothing'}")

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
        if self.link:
            self.link.terminate()
            self.link.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)


class Relay:
    """One relay running between the hosts; where a client has to connect."""

    def __init__(self, hosts, how, options):
        self.hosts, self.how, self.threads, self.options = hosts, how, options.threads, options
        self.process = None
        explicit = how in EXPLICIT
        shift = RELAYED if explicit else 0
        self.address = RELAY if explicit else SERVER
        self.iperf, self.echo, self.answer, self.keep, self.age, self.fetch, self.store = (port + shift for port in PORTS)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self):
        inside = ["ip", "netns", "exec", self.hosts.relay]
        if self.how in ("haproxy", "haproxy-copy"):
            splice = self.how == "haproxy"
            text = HAPROXY.format(threads=self.threads, most=idle_connections() + 2000, bufsize=16384 if splice else 262144,
                                  splice="option splice-request\n  option splice-response" if splice else "")
            text += "".join(HAPROXY_LISTEN.format(port=port, inside=port + RELAYED, relay=RELAY, server=SERVER)
                            for port in PORTS)
            self.start_with_file(text, lambda name: [*inside, "haproxy", "-db", "-f", name])
        elif self.how == "nginx":
            servers = " ".join(f"server {{ listen {RELAY}:{port + RELAYED} backlog=4096 reuseport; "
                               f"proxy_pass {SERVER}:{port}; }}" for port in PORTS)
            descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            text = NGINX.format(threads=self.threads, servers=servers, descriptors=descriptors, pid=f"/run/longfat-bench-{os.getpid()}.pid")
            self.start_with_file(text, lambda name: [*inside, "nginx", "-c", name])
        elif self.how == "socat":
            script = " ".join(f"socat -b262144 TCP-LISTEN:{port + RELAYED},bind={RELAY},reuseaddr,fork,backlog=4096 "
                              f"TCP:{SERVER}:{port} 2>/dev/null &" for port in PORTS)
            self.process = subprocess.Popen([*inside, "sh", "-c", script + " wait"], start_new_session=True)
            self.wait_for_listener()
        elif self.how is not None:
            if self.options.example:
                program = getattr(self.options, "program_of_example", ROOT / "target/release/examples/relay")
                target = {"explicit": [f"{RELAY}:{self.iperf}", f"{SERVER}:{IPERF}"],
                          "after-server": ["lan", "after-server"],
                          "end-to-end": ["lan", "end-to-end"],
                          **{how: ["lan", "adopt", *keys] for how, keys in ADOPT.items()},
                          }.get(str(self.how), ["lan", "early"])
                command = [str(program), *target]
            else:
                command = [str(self.options.program), "relay", *self.longfat_arguments()]
            # Of a file it runs as a service, whose log on standard error says when it is ready.
            service = command[1:3] == ["relay", "run"]
            stream = "stderr" if service else "stdout"
            self.process = subprocess.Popen([*inside, *command], **{stream: subprocess.PIPE}, text=True)
            line = getattr(self.process, stream).readline()
            if not line.startswith("info ready" if service else "ready"):
                raise RuntimeError(f"{' '.join(command)}: in place of being ready said: {line.strip() or 'nothing'}")
            # The example tells of every connection: a pipe that nobody reads would make it stand still.
            said = getattr(self.process, stream)
            threading.Thread(target=lambda: sum(1 for _ in said), daemon=True).start()

    def start_with_file(self, text, command):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.file.write(text)
        self.file.flush()
        self.process = subprocess.Popen(command(self.file.name), start_new_session=True)
        self.wait_for_listener()

    def wait_for_listener(self):
        for _ in range(200):
            if f":{self.keep} " in run("ip", "netns", "exec", self.hosts.relay, "ss", "-tln"):
                return
            time.sleep(0.05)
        raise TimeoutError(f"{self.how} does not listen")

    def longfat_arguments(self):
        """Of the program: the ways it has no options for are in a file."""
        if self.how not in ("explicit", "after-server", "end-to-end", *ADOPT):
            return [*self.how, "--workers", str(self.threads)]
        if self.how == "explicit":
            own = "".join(f"[[listen]]\naddress = '{RELAY}:{port + RELAYED}'\nto = '{SERVER}:{port}'\n" for port in PORTS)
        else:
            keys = ADOPT.get(self.how, [])
            own = f"[intercept]\ninterfaces = ['lan']\n[defaults]\naccept = '{'end-to-end' if keys else self.how}'\n"
            own += "".join(f"{key}\n" for key in keys)
        self.file = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.file.write(f"workers = {self.threads}\ncontrol = {{ socket = '{self.file.name}.sock' }}\n{own}")
        self.file.flush()
        return ["run", self.file.name]

    @property
    def carries(self):
        """Whether new connections cost its process something."""
        return self.process is not None and str(self.how) not in ADOPT

    def pids(self):
        """The relay and its children (nginx's workers, socat's connections)."""
        found, fresh = [], [self.process.pid]
        while fresh:
            found += fresh
            fresh = [int(child) for pid in fresh for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children")
                     for child in task.read_text().split()]
        return found

    def cpu_s(self):
        """Of living threads as the scheduler measured it (a paced sender keeps step with the clock whose ticks sample
        user and system time, and so hides from them or meets every one), and of children that have ended, in ticks."""
        if self.process is None:
            return 0.0
        while True:
            try:
                return self.cpu_now_s()
            except (FileNotFoundError, ProcessLookupError):
                pass  # One of socat's children ended meanwhile: its parent has its ticks now.

    def cpu_now_s(self):
        nanoseconds = ticks = 0
        for pid in self.pids():
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                nanoseconds += int((task / "schedstat").read_text().split()[0])
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += sum(int(field) for field in fields[13:15])
        return nanoseconds / 1e9 + ticks / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self):
        """Anonymous resident memory."""
        lines = [line for pid in self.pids() for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()]
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.process is not None:
            if self.how in ("haproxy", "haproxy-copy", "nginx", "socat"):
                os.killpg(self.process.pid, signal.SIGTERM)
            else:
                self.process.terminate()
            self.process.wait()


def inside(name, work):
    """Runs `work` on a thread of its own in a network namespace, for good; `result()` waits for it, and raises what it did."""
    done = concurrent.futures.Future()

    def enter():
        try:
            with open(f"/run/netns/{name}") as file:
                os.setns(file.fileno(), os.CLONE_NEWNET) if hasattr(os, "setns") else libc_setns(file.fileno())
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)
    threading.Thread(target=enter, daemon=True).start()
    return done


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
            if not connection.recv(64):
                raise ConnectionError("a connection ended in place of an echo")
            found.append((time.perf_counter() - start) * 1e6)
            time.sleep(0.001)
    return inside(name, work)


def answer_server(name):
    """Answers the first byte of each connection with one, and keeps those that come to the other port."""
    def answer():
        listener = socket.create_server((SERVER, ANSWER), backlog=4096)
        while True:
            connection, _ = listener.accept()
            try:
                connection.sendall(connection.recv(1))
            except OSError:
                pass
            connection.close()

    def keep():
        listener, kept = socket.create_server((SERVER, KEEP), backlog=4096), []
        while True:
            kept.append(listener.accept()[0])
            kept = kept[-idle_connections():]

    inside(name, answer)
    inside(name, keep)


def connections(hosts, relay, seconds):
    """New connections one after another, each carrying a byte there and back."""
    times = []

    def work():
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.perf_counter()
            with socket.create_connection((relay.address, relay.answer)) as connection:
                connection.sendall(b"x")
                if not connection.recv(1):
                    raise ConnectionError("a connection ended in place of an answer")
            times.append((time.perf_counter() - begun) * 1e6)

    before = relay.cpu_s()
    inside(hosts.client, work).result()
    if not times:
        raise RuntimeError("no connection was answered")
    cpu_s = relay.cpu_s() - before
    if relay.carries and cpu_s / len(times) * 1e6 < LEAST_US_PER_CONNECTION:
        raise RuntimeError("connections were answered without the relay")
    times.sort()
    return {"conn/s": len(times) / seconds, "conn p50 us": times[len(times) // 2],
            "conn p99 us": times[len(times) * 99 // 100], "CPU us/conn": cpu_s / len(times) * 1e6}


def crowd(hosts, relay, seconds):
    """New connections, each carrying a byte there and back, of several clients at once: the processors are busy."""
    begin = time.monotonic() + READY_S
    command = ["ip", "netns", "exec", hosts.client, sys.executable, "-c", CLIENT, relay.address, str(relay.answer), str(begin)]
    clients = [subprocess.Popen([*command, str(begin + seconds)], stdout=subprocess.PIPE, text=True) for _ in range(CLIENTS)]
    time.sleep(max(begin - time.monotonic(), 0))
    before, busy_before = relay.cpu_s(), busy_s()
    counts = [client.communicate()[0].strip() for client in clients]
    if not all(counts) or not (total := sum(map(int, counts))):
        raise RuntimeError(f"connections were not answered: {counts}")
    return {"conn/s": total / seconds, "CPU us/conn": (relay.cpu_s() - before) / total * 1e6,
            "machine us/conn": (busy_s() - busy_before) / total * 1e6}


def file_servers(name):
    """One sends as many bytes as it is asked for. The other takes what comes, and says so after so many bytes each time."""
    def each(port, serve):
        listener = socket.create_server((SERVER, port), backlog=4096)
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    def send(connection):
        with connection:
            left = int.from_bytes(connection.recv(8), "little")
            while left:
                left -= connection.send(memoryview(BLOCK)[:left])

    def take(connection):
        room = bytearray(len(BLOCK))
        with connection:
            for count in (ADOPTED_BYTES, RELEASED_BYTES):
                while count and (taken := connection.recv_into(room, min(count, len(room)))):
                    count -= taken
                connection.sendall(b"x")

    inside(name, lambda: each(FETCH, send))
    inside(name, lambda: each(STORE, take))


def fetch(relay, count, room):
    """Milliseconds from connect() to the end of so many bytes."""
    begun = time.perf_counter()
    with socket.create_connection((relay.address, relay.fetch)) as connection:
        connection.sendall(count.to_bytes(8, "little"))
        got = 0
        while taken := connection.recv_into(room):
            got += taken
    if got != count:
        raise RuntimeError(f"a connection ended after {got} of {count} bytes")
    return (time.perf_counter() - begun) * 1e3


def mixed(hosts, relay):
    """Many short connections and a few long ones, several at once, from the server."""
    draw = random.Random(1)
    sizes = [draw.randint(*SMALL_BYTES) for _ in range(SMALL)] + [draw.randint(*LARGE_BYTES) for _ in range(LARGE)]
    draw.shuffle(sizes)
    queue, times = iter(sizes), {True: [], False: []}

    def work():
        room = bytearray(len(BLOCK))
        for count in queue:
            times[count >= LARGE_BYTES[0]].append(fetch(relay, count, room))

    before, busy_before, begun = relay.cpu_s(), busy_s(), time.monotonic()
    for done in [inside(hosts.client, work) for _ in range(AT_ONCE)]:
        done.result()
    took_s, gigabytes = time.monotonic() - begun, sum(sizes) / 1e9
    small, large = sorted(times[False]), sorted(times[True])
    return {"Gbit/s": gigabytes * 8 / took_s, "CPU s/GB": (relay.cpu_s() - before) / gigabytes,
            "machine s/GB": (busy_s() - busy_before) / gigabytes, "small p50 ms": small[len(small) // 2],
            "small p99 ms": small[len(small) * 99 // 100], "large p50 ms": large[len(large) // 2], "large max ms": large[-1]}


def legs(hosts, connection):
    """Sockets of the relay's host for a client's connection."""
    port = connection.getsockname()[1]
    return len(run("ip", "netns", "exec", hosts.relay, "ss", "-tnH", f"( sport = :{port} or dport = :{port} )").splitlines())


def released(hosts, relay):
    """A bulk flow that the relay has stepped into, and has left in a pause."""
    def send(connection, count):
        begun = time.perf_counter()
        while count:
            count -= connection.send(memoryview(BLOCK)[:count])
        if not connection.recv(1):
            raise ConnectionError("a connection ended in place of an answer")
        return time.perf_counter() - begun

    def work():
        with socket.create_connection((relay.address, relay.store)) as connection:
            send(connection, ADOPTED_BYTES)
            adopted = legs(hosts, connection)
            time.sleep(PAUSE_S)
            left = legs(hosts, connection)
            if relay.how == "release" and (not adopted or left):
                raise RuntimeError(f"the relay had {adopted} sockets of the flow before its pause, and {left} after it")
            busy_before = busy_s()
            took_s = send(connection, RELEASED_BYTES)
            return {"Gbit/s": RELEASED_BYTES * 8 / took_s / 1e9, "transfer ms": took_s * 1e3,
                    "machine s/GB": (busy_s() - busy_before) / RELEASED_BYTES * 1e9}
    return inside(hosts.client, work).result()


def age_server(name, ages):
    """Takes one connection's blocks, and how old each is: it begins with the time at which it was written."""
    listening = threading.Event()

    def take():
        with socket.create_server((SERVER, AGE)) as listener:
            listening.set()
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                while len(block := stream.read(AGED_BYTES)) == AGED_BYTES:
                    ages.append((time.perf_counter_ns() - int.from_bytes(block[:8], "little")) / 1e6)

    done = inside(name, take)
    listening.wait(10)
    return done


def slow_path(hosts, relay, seconds):
    """How old bytes are that have come over a slow path, in the second half of a transfer."""
    run("ip", "netns", "exec", hosts.relay, "tc", "qdisc", "replace", "dev", "wan", "root", "tbf", *SLOW_PATH)
    ages = []
    taken = age_server(hosts.server, ages)

    def write():
        end = time.monotonic() + seconds
        with socket.create_connection((relay.address, relay.age)) as connection:
            while time.monotonic() < end:
                connection.sendall(time.perf_counter_ns().to_bytes(8, "little").ljust(AGED_BYTES, b"x"))

    begun = time.monotonic()
    inside(hosts.client, write).result()
    taken.result()
    rate = len(ages) * AGED_BYTES * 8 / (time.monotonic() - begun) / 1e9
    ages = sorted(ages[len(ages) // 2:])
    return {"Gbit/s": rate, "age p50 ms": ages[len(ages) // 2], "age p99 ms": ages[len(ages) * 99 // 100]}


def idle_connections():
    return IDLE if resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= IDLE_DESCRIPTORS else FEWER_IDLE


def idle(hosts, relay):
    """User memory per idle connection."""
    kept = []
    # A process each.
    count = 500 if relay.how == "socat" else idle_connections()
    before = relay.memory_bytes() if relay.process else 0

    def work():
        kept.extend(socket.create_connection((relay.address, relay.keep)) for _ in range(count))

    inside(hosts.client, work).result()
    time.sleep(1)
    after = relay.memory_bytes() if relay.process else 0
    for connection in kept:
        connection.close()
    return {"idle B/conn": (after - before) / count, "idle": count}


def busy_s():
    """Time that all processors were not idle since they began, as the kernel counts idle time: exactly."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()
    return os.cpu_count() * time.monotonic() - sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")


def measure(hosts, relay_name, load, options):
    with Relay(hosts, RELAYS[relay_name], options) as relay:
        return measure_running(hosts, relay, load, options.seconds)


def measure_running(hosts, relay, load, seconds):
    """One load through a relay that runs already."""
    if load == "connections":
        return connections(hosts, relay, seconds)
    if load == "idle":
        return idle(hosts, relay)
    if load == "40 Mbit/s path":
        return slow_path(hosts, relay, seconds)
    if load == "8 clients":
        return crowd(hosts, relay, seconds)
    if load == "mixed":
        return mixed(hosts, relay)
    if load == "released":
        return released(hosts, relay)
    arguments, with_ping = LOADS[load]
    pings = []
    pinging = ping(hosts.client, relay, seconds, pings) if with_ping else None
    before, busy_before = relay.cpu_s(), busy_s()
    output = json.loads(run("ip", "netns", "exec", hosts.client, "iperf3", "-c", relay.address, "-p",
                            str(relay.iperf), "-t", str(seconds), "-O", "1", "-J", *arguments))
    cpu_s, machine_s = relay.cpu_s() - before, busy_s() - busy_before
    if "error" in output:
        raise RuntimeError(f"iperf3 says: {output['error']}")
    if pinging:
        pinging.result()
    streams = [stream["receiver"]["bytes"] for stream in output["end"]["streams"]]
    received = output["end"]["sum_received"]
    if received["bytes"] == 0:
        raise RuntimeError(f"{load}: nothing arrived. iperf3 says: {json.dumps(output['end'])}")
    # The omitted first second is relayed too.
    gigabytes = received["bytes"] / 1e9 * (seconds + 1) / seconds
    if relay.process is not None and not str(relay.how).startswith("watch") and cpu_s / gigabytes < LEAST_S_PER_GB:
        raise RuntimeError(f"{gigabytes:.3g} GB arrived without the relay, which took {cpu_s:.3g} s")
    result = {"Gbit/s": received["bits_per_second"] / 1e9, "CPU s/GB": cpu_s / gigabytes,
              "machine s/GB": machine_s / gigabytes}
    if len(streams) > 1:
        result["min/max"] = min(streams) / max(streams)
    if pings:
        pings.sort()
        result["ping p50 us"], result["ping p99 us"] = pings[len(pings) // 2], pings[len(pings) * 99 // 100]
    return result


def hangs(*_):
    raise TimeoutError("it hangs")


@contextlib.contextmanager
def servers(hosts):
    """All that the loads talk to."""
    echo_server(hosts.server)
    answer_server(hosts.server)
    file_servers(hosts.server)
    server = subprocess.Popen(["ip", "netns", "exec", hosts.server, "iperf3", "-s"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def alone(packets, name, load, options):
    """One measurement between hosts of its own: the connections that one relay leaves in TIME_WAIT and the thresholds
    that the kernel remembers of them would be met by the next."""
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(options.seconds + HANGING_S)
    with Hosts(packets) as hosts, servers(hosts):
        return measure(hosts, name, load, options)


def in_its_own_process(*arguments):
    """One measurement, whose servers end with the process. One that dies breaks its executor for good, and no other."""
    with concurrent.futures.ProcessPoolExecutor(1) as process:
        try:
            return process.submit(alone, *arguments).result()
        except Exception as error:
            return {"failed": reason(error)}


def reason(error):
    """On one line, with the end of what a command said."""
    said = [" ".join(text.split())[-200:] for text in (getattr(error, "stderr", None), getattr(error, "stdout", None)) if text]
    return ": ".join([*said, f"{type(error).__name__}: {error}"])


def rounds(options, packets, out):
    """How many measurements failed."""
    names = [name for name in RELAYS if not options.only or name in options.only]
    # Connections that carry a byte, or nothing, know no size of packets.
    named = options.loads or [load for load in LOADS if load not in PAIRED_ONLY]
    loads = [load for load in named if packets == "gso" or LOADS[load]]
    failed = 0
    for number in range(options.rounds):
        order = random.Random(number).sample(names, len(names))
        for load in loads:
            for name in order:
                if load == "idle" and name == "forwarding":
                    continue
                figures = in_its_own_process(packets, name, load, options)
                row = {"round": number, "packets": packets, "relay": name, "load": load,
                       "seconds": options.seconds, "threads": options.threads,
                       "kernel": platform.release(), **figures}
                out.write(json.dumps(row) + "\n")
                out.flush()
                failed += "failed" in figures
                print(f"{packets} {load:16} {name:18} {shown(figures)}", flush=True)
    return failed


def shown(figures):
    if "failed" in figures:
        return f"FAILED: {figures['failed']}"
    return "  ".join(f"{name} {value:.3g}" for name, value in figures.items())


def spread(values):
    """The median, and the least and the greatest of several."""
    if not values:
        return ""
    text = f"{statistics.median(values):.3g}"
    return f"{text} ({min(values):.3g}-{max(values):.3g})" if len(values) > 1 else text


# What the relay is to reach: column, loads, sense, and the ratio to the best peer, or else a bound.
TARGETS = [
    ("Gbit/s", ("1 flow", "8 flows"), "at least", 1.0, None),
    ("Gbit/s", ("2 Gbit/s paced",), "at least", 0.99, None),
    ("CPU s/GB", ("1 flow", "8 flows"), "at most", 1.0, None),
    ("CPU s/GB", ("2 Gbit/s paced",), "at most", 0.5, None),
    ("min/max", ("8 flows",), "at least", None, 0.9),
    ("age p50 ms", ("40 Mbit/s path",), "at most", 1.0, None),
    ("Gbit/s", ("40 Mbit/s path",), "at least", 0.97, None),
    ("conn/s", ("connections",), "at least", 1.0, None),
    ("conn p99 us", ("connections",), "at most", 1.0, None),
    ("idle B/conn", ("idle",), "at most", None, 2048),
]
OURS = ("longfat", "longfat explicit", "longfat after-server")
PEERS = ("HAProxy splice", "HAProxy copy", "nginx 256k", "socat 256k")


def by_round(rows, packets, load, relay, column):
    """One value per round: the last, when a round was run again."""
    return {r["round"]: r[column] for r in rows
            if (r["packets"], r["load"], r["relay"]) == (packets, load, relay) and column in r}


def best_peer(rows, packets, load, target):
    """The peer whose median is best, and its value per round. (The best of each round would be the luckiest of four.)"""
    column, _, sense, _, _ = target
    measured = {peer: values for peer in PEERS if (values := by_round(rows, packets, load, peer, column))}
    best = max if sense == "at least" else min
    return best(measured.items(), key=lambda item: statistics.median(item[1].values()), default=(None, {}))


def found(rows, packets, load, relay, target):
    """What a target is about in every round, and the peer it was held against; nothing when it was not measured."""
    column, _, _, ratio, _ = target
    own = by_round(rows, packets, load, relay, column)
    if ratio is None:
        return list(own.values()), None
    peer, theirs = best_peer(rows, packets, load, target)
    return [value / theirs[number] for number, value in own.items() if number in theirs], peer


def targets(rows):
    lines = ["", "## Targets", "", "Found: the median over the rounds (least to greatest).", "",
             "| packets | load | relay | | target | found | |", "|" + "---|" * 7]
    for target in TARGETS:
        column, loads, sense, ratio, bound = target
        for packets in ("gso", "mtu"):
            for load in loads:
                for relay in OURS:
                    values, peer = found(rows, packets, load, relay, target)
                    if not values:
                        continue
                    value = statistics.median(values)
                    wanted = bound if ratio is None else ratio
                    met = value >= wanted if sense == "at least" else value <= wanted
                    of = "" if peer is None else f" of {peer}'s"
                    lines.append(f"| {packets} | {load} | {relay} | {column} | {sense} {wanted:g}{of} | {value:.3g} "
                                 f"({min(values):.3g} to {max(values):.3g}) | {'met' if met else '**missed**'} |")
    return lines


def summarise(folder):
    rows = [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]
    columns = ["Gbit/s", "CPU s/GB", "machine s/GB", "min/max", "ping p50 us", "ping p99 us", "age p50 ms", "age p99 ms", "conn/s", "conn p50 us", "conn p99 us",
               "CPU us/conn", "idle B/conn"]
    lines = [f"# {folder.name}", "", "Medians over the rounds that did not fail; min/max is the least over the greatest of eight flows.",
             "", "| packets | load | relay | rounds | " + " | ".join(columns) + " |",
             "|" + "---|" * (4 + len(columns))]
    # Earlier results may name a relay that is not measured now.
    names = [*RELAYS, *sorted({row["relay"] for row in rows} - set(RELAYS))]
    keys = sorted({(r["packets"], r["load"], r["relay"]) for r in rows},
                  key=lambda k: (k[0], list(LOADS).index(k[1]), names.index(k[2])))
    for key in keys:
        same = [r for r in rows if (r["packets"], r["load"], r["relay"]) == key]
        cells = []
        for column in columns:
            values = [r[column] for r in same if column in r]
            cells.append(spread(values))
        lines.append(f"| {' | '.join(key)} | {sum('failed' not in r for r in same)} | {' | '.join(cells)} |")
    lines += targets(rows)
    failed = [row for row in rows if "failed" in row]
    lines += ["", f"Failed: {len(failed)} of {len(rows)} measurements."]
    lines += [f"- {row['packets']}, {row['load']}, {row['relay']}, round {row['round']}: {row['failed'][:600]}" for row in failed]
    (folder / "summary.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def raise_descriptors():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, IDLE_DESCRIPTORS),) * 2)
    except ValueError:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--packets", choices=["gso", "mtu", "both"], default="both")
    parser.add_argument("--only", action="append", choices=list(RELAYS))
    parser.add_argument("--loads", action="append", choices=[load for load in LOADS if load not in PAIRED_ONLY])
    parser.add_argument("--folder", help="results folder; today's date when absent")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/longfat",
                        help="longfat as built otherwise, to try changes")
    parser.add_argument("--example", action="store_true", help="measure the crate's example instead of the program")
    parser.add_argument("--dry", action="store_true", help="keep no results")
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this results folder")
    options = parser.parse_args()
    if options.summary:
        summarise(options.summary)
        return 0
    raise_descriptors()
    sizes = ["gso", "mtu"] if options.packets == "both" else [options.packets]
    if options.dry:
        with open(os.devnull, "w") as out:
            return int(sum(rounds(options, packets, out) for packets in sizes) > 0)
    folder = HERE / "results" / (options.folder or datetime.date.today().isoformat())
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "raw.jsonl", "a") as out:
        failed = sum(rounds(options, packets, out) for packets in sizes)
    summarise(folder)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
