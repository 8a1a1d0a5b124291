"""Three network namespaces, client - relay - server, the programs in them, and the relay."""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SERVER = {"v4": "10.78.2.2", "v6": "fd78:2::2"}
CLIENT = {"v4": "10.78.1.2", "v6": "fd78:1::2"}
RELAY_WAN = {"v4": "10.78.2.1", "v6": "fd78:2::1"}
# Debian's: its packages are those that scripts/setup-clients installs.
PYTHON = "/usr/bin/python3"
PEERS = pathlib.Path(__file__).resolve().parent / "peers.py"
ADMIN_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def run(*command, **more):
    more = {"check": True, "capture_output": True, "text": True, "timeout": 120} | more
    try:
        return subprocess.run([str(part) for part in command], **more)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"{error.stdout or ''}{error.stderr or ''}")
        raise


def bracketed(address):
    return f"[{address}]" if ":" in address else address


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def remove_remains():
    """Of runs that were killed: their namespaces, and what runs in them."""
    for line in run("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        owner = re.fullmatch(r"lfrc(\d+)[crs]", name)
        if owner and not pathlib.Path("/proc", owner[1]).exists():
            for pid in run("ip", "netns", "pids", name).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "del", name)


class Hosts:
    """client - relay - server, and what runs in them."""

    def __init__(self):
        tag = f"lfrc{os.getpid()}"
        self.names = {end: f"{tag}{end}" for end in "crs"}
        self.daemons = []

    def inside(self, end, *command, **more):
        return run("ip", "netns", "exec", self.names[end], *command, **more)

    def start(self, end, *command, **more):
        command = ["ip", "netns", "exec", self.names[end], *map(str, command)]
        log = open(self.work / "daemons.log", "a")
        more.setdefault("env", os.environ | {"PATH": ADMIN_PATH})
        # Samba's server ends its whole process group, which must not be this program's.
        more.setdefault("start_new_session", True)
        process = subprocess.Popen(command, stdout=more.pop("stdout", log), stderr=log, **more)
        self.daemons.append(process)
        return process

    def stop(self, process):
        self.daemons.remove(process)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ip(self, end, *words):
        return run("ip", "-n", self.names[end], *words)

    def peers(self, end, *words, **more):
        """One of the programs of peers.py; what it printed."""
        return self.inside(end, PYTHON, PEERS, *words, **more).stdout.strip()

    def __enter__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="longfat-clients-"))
        self.work.chmod(0o755)
        remove_remains()
        for name in self.names.values():
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        # An interface asks for no IPv6 neighbour on behalf of others, whether it forwards or relays, before its own
        # address is known to be unique: in that second or two a client repeats its SYN.
        for end in self.names:
            for which in ("all", "default"):
                self.sysctl(end, f"net/ipv6/conf/{which}/accept_dad", 0)
        for end, port, net in (("c", "lan", 1), ("s", "wan", 2)):
            host, relay = self.names[end], self.names["r"]
            run("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", relay)
            for name, device, last in ((host, "eth0", 2), (relay, port, 1)):
                run("ip", "-n", name, "addr", "add", f"10.78.{net}.{last}/24", "dev", device)
                run("ip", "-n", name, "-6", "addr", "add", f"fd78:{net}::{last}/64", "dev", device, "nodad")
                run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "-n", host, "route", "add", "default", "via", f"10.78.{net}.1")
            run("ip", "-n", host, "-6", "route", "add", "default", "via", f"fd78:{net}::1")
        for key in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            self.sysctl("r", key, 1)
        return self

    def sysctl(self, end, key, value):
        """Sets it; what it was."""
        path = f"/proc/sys/{key}"
        before = self.inside(end, "cat", path).stdout.strip()
        self.inside(end, "sh", "-c", f"echo {value} > {path}")
        return before

    def __exit__(self, *_):
        for process in reversed(self.daemons[:]):
            self.stop(process)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def wait_for_port(self, port, address=SERVER["v4"]):
        script = f"import socket; socket.create_connection(('{address}', {port}), 1)"
        for _ in range(200):
            if subprocess.run(["ip", "netns", "exec", self.names["s"], PYTHON, "-c", script],
                              capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        log = (self.work / "daemons.log").read_text()[-2000:]
        raise TimeoutError(f"nothing listens on port {port}; the servers said:\n{log}")


class Relay:
    """The relay between the hosts, and how many connections to each of the server's addresses it says that it has carried:
    a relay that let everything pass unrelayed could not be told from one that carries it."""

    def __init__(self, hosts, program, words):
        self.process = hosts.start("r", program, "lan", *words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().startswith("ready"), "the relay does not start"
        self.carried = dict.fromkeys(SERVER.values(), 0)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.process.stdout:
            for address in self.carried:
                self.carried[address] += line.startswith("closed: ") and f" to {bracketed(address)}:" in line

    def wait_for_more_than(self, before, address, within_s):
        """A connection is reported when both legs have ended, which may be after its client has."""
        deadline = time.monotonic() + within_s
        while self.carried[address] <= before:
            assert time.monotonic() < deadline, "nothing of it went through the relay"
            time.sleep(0.01)
