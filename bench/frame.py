"""What benchmarks of several folders share: the program, its congestion controls held, two hosts with an emulated link between
them, dated results."""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGFAT = os.environ.get("LONGFAT", str(ROOT / "target/release/longfat"))


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def held(ccs):
    """Our congestion controls among `ccs` are in the kernel for as long."""
    ours = [cc for cc in ccs if cc.startswith("lf_")]
    hold = [LONGFAT, "cc", "exec"]
    holders = [subprocess.Popen([*hold, cc, "--", "sleep", "infinity"], stderr=subprocess.DEVNULL) for cc in ours]
    available = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
    deadline = time.monotonic() + 20
    try:
        while missing := set(ours) - set(available.read_text().split()):
            if time.monotonic() > deadline:
                raise SystemExit(f"not registered: {missing}")
            time.sleep(0.1)
        yield
    finally:
        for holder in holders:
            holder.terminate()
        for holder in holders:
            holder.wait()


class Bed:
    """Two hosts, `sender` and `receiver` (RECEIVER), and between them `link`, where a link is to be driven: namespaces."""

    SENDER, RECEIVER, NETWORK = "10.77.0.1", "10.77.0.2", "10.77.0.0/24"

    def __init__(self, sysctls=()):
        tag = f"lfbench{os.getpid()}"
        self.names = self.sender, self.receiver, self.link = [f"{tag}-{role}" for role in ("sender", "receiver", "link")]
        self.sysctls = sysctls
        self.started = []

    def __enter__(self):
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            self.host(self.sender, "a", self.SENDER)
            self.host(self.receiver, "b", self.RECEIVER)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            process.terminate()
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def host(self, name, end, address):
        """A host whose packets leave as a wire would carry them."""
        veth = ["mtu", "1500", "type", "veth", "peer", "name", "eth", "mtu", "1500", "netns", name]
        run("ip", "-n", self.link, "link", "add", "name", end, *veth)
        run("ip", "-n", self.link, "link", "set", "dev", end, "up")
        run("ip", "-n", name, "link", "set", "dev", "eth", "up")
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth")
        run("ip", "netns", "exec", name, "ethtool", "-K", "eth", "tso", "off", "gso", "off", "gro", "off")
        for setting in self.sysctls:
            run("ip", "netns", "exec", name, "sysctl", "-qw", setting)

    def popen(self, name, *command, **options):
        """A program in one of the namespaces; ended with the bed at the latest."""
        process = subprocess.Popen(["ip", "netns", "exec", name, *command], text=True, **options)
        self.started.append(process)
        return process

    def start(self, name, *command, ready):
        """The same, once it has printed a line with the word `ready`."""
        process = self.popen(name, *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for line in process.stdout:
            if ready in line:
                return process
        raise SystemExit(f"{' '.join(command)} ended with {process.wait()} before it said '{ready}'")

    def drive(self, *lines):
        """The link, as the TOML `lines` say; its figures are what it prints when it is terminated."""
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as plan:
            plan.write("\n".join(lines) + "\n")
            plan.flush()
            command = [LONGFAT, "link", "drive", "--plan", plan.name, "--a", "a", "--b", "b", "--json"]
            return self.start(self.link, *command, ready="ready")

    def driven(self, link):
        """Ends a link that drive() began; its figures."""
        link.terminate()
        return json.loads(link.communicate()[0])


class Results:
    """results/DATE/raw.jsonl beside the `script`: first what it ran on, then a line per figure."""

    def __init__(self, script, **head):
        self.date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        self.directory = pathlib.Path(script).resolve().parent / "results" / self.date
        self.directory.mkdir(parents=True, exist_ok=True)
        self.raw = self.directory / "raw.jsonl"
        if not self.raw.exists():
            self.add({"date": self.date, "kernel": platform.release(), "cores": os.cpu_count(), **head})

    def add(self, row):
        with self.raw.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read(directory):
    """What it ran on, and the figures."""
    head, *rows = [json.loads(line) for line in (directory / "raw.jsonl").read_text().splitlines()]
    return head, rows
