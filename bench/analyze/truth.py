#!/usr/bin/env python3
"""`longfat analyze` beside the sender's kernel, tshark and tcptrace, on real kernel TCP of more than thirty kinds.

    bench/analyze/truth.py                 # every kind; exit code 1 when a kernel counter, or an unexplained figure, does not agree
    bench/analyze/truth.py --kind loss_1_percent --kind zero_window
    bench/analyze/truth.py --seed 7        # other losses
    bench/analyze/truth.py --keep DIR      # keep the captures
    bench/analyze/truth.py --generated DIR # compare made-up captures, too (cargo run -p longfat-analyze --example kinds -- DIR)
    bench/analyze/truth.py --write         # results into results/DATE

Each kind (`kinds.py`): two namespaces and a path between them, offloads off unless the kind is about them, so that the capture (tcpdump, headers
only) has segments as the kernel counts them; what the programs of that kind do; then the sender's counters against what the capture says,
and every direction of every connection against tshark and tcptrace (`agreement.py`). Needs root, iproute2, nftables, ethtool, tcpdump, tshark,
tcptrace.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

import agreement
import wrap
from kinds import KINDS, Ends
from wire import Wire

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGFAT = os.environ.get("LONGFAT", str(ROOT / "target/release/longfat"))


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


class Bed:
    """Two hosts and, unless the kernel's own cable will do, a place between them."""

    def __init__(self, kind, seed):
        self.kind, self.seed = kind, seed

    def __enter__(self):
        tag = f"lftruth{os.getpid()}"
        self.sender, self.receiver, self.middle = (f"{tag}-{role}" for role in ("s", "r", "m"))
        self.names = (self.sender, self.receiver, self.middle)
        for name in self.names:
            run("ip", "netns", "add", name)
        if self.kind.offloads:
            run("ip", "-n", self.sender, "link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", self.receiver)
        else:
            for name, end in ((self.sender, "a"), (self.receiver, "b")):
                run("ip", "-n", self.middle, "link", "add", "name", end, "type", "veth", "peer", "name", "eth", "netns", name)
                run("ip", "-n", self.middle, "link", "set", "dev", end, "mtu", self.kind.mtu, "up")
                run("ip", "netns", "exec", self.middle, "sysctl", "-qw", f"net.ipv6.conf.{end}.disable_ipv6=1")
        for number, name in ((1, self.sender), (2, self.receiver)):
            self.address(name, number)
        return self

    def address(self, name, own):
        other = 3 - own
        run("ip", "-n", name, "link", "set", "dev", "eth", "mtu", self.kind.mtu, "address", f"02:00:00:00:78:0{own}", "up")
        run("ip", "-n", name, "address", "add", f"10.78.0.{own}/24", "dev", "eth")
        run("ip", "-n", name, "address", "add", f"fd00:78::{own}/64", "dev", "eth", "nodad")
        # A SYN that waits for a lost ARP request times out, is counted, and nothing is sent (TCPSpuriousRtxHostQueues).
        for address in (f"10.78.0.{other}", f"fd00:78::{other}"):
            run("ip", "-n", name, "neighbour", "add", address, "lladdr", f"02:00:00:00:78:0{other}", "dev", "eth", "nud", "permanent")
        if not self.kind.offloads:
            off = ["tso", "off", "gso", "off", "gro", "off"]
            # What passes a packet socket has the checksum that stands in it.
            off += ["tx", "off"] if self.kind.fate else []
            run("ip", "netns", "exec", name, "ethtool", "-K", "eth", *off)
        if self.kind.tunnel == "vxlan":
            run("ip", "-n", name, "link", "add", "vx", "type", "vxlan", "id", "7", "remote", f"10.78.0.{other}", "dstport", "4789", "dev", "eth")
            run("ip", "-n", name, "link", "set", "dev", "vx", "address", f"02:00:00:00:79:0{own}", "up")
            run("ip", "-n", name, "address", "add", f"10.79.0.{own}/24", "dev", "vx")
            run("ip", "-n", name, "neighbour", "add", f"10.79.0.{other}", "lladdr", f"02:00:00:00:79:0{other}", "dev", "vx", "nud", "permanent")
            run("ip", "netns", "exec", name, "ethtool", "-K", "vx", "tso", "off", "gso", "off", "gro", "off", "tx", "off")
        for key, value in self.kind.sysctls.items():
            run("ip", "netns", "exec", name, "sysctl", "-qw", f"net.ipv4.{key}={value}")

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False)

    def addresses(self, kind):
        if kind is KINDS["ipv6"]:
            return ("fd00:78::1", "fd00:78::2")
        net = 79 if kind.tunnel else 78
        return (f"10.{net}.0.1", f"10.{net}.0.2")

    def counters(self, namespace):
        found = {}
        for path in ("/proc/net/netstat", "/proc/net/snmp"):
            lines = subprocess.check_output(["ip", "netns", "exec", namespace, "cat", path], text=True).splitlines()
            for names, values in zip(lines[::2], lines[1::2]):
                prefix, *names = names.replace(":", "").split()
                found.update({prefix + n: int(v) for n, v in zip(names, values.split()[1:])})
        return found

    def darken(self, seconds):
        inside = ["ip", "netns", "exec", self.receiver, "nft"]
        run(*inside, "table inet dark { chain in { type filter hook input priority 0; policy drop; }; }")
        time.sleep(seconds)
        run(*inside, "delete", "table", "inet", "dark")


class Path:
    """What is between the two ends while programs run."""

    def __init__(self, bed, kind):
        self.wire = self.driver = None
        if kind.fate:
            self.wire = Wire(bed.middle, kind.delay_s, kind.fate(random.Random(bed.seed)))
        elif kind.link:
            self.driver = self.drive(bed.middle, kind.link | {"seed": bed.seed})

    @staticmethod
    def drive(namespace, link):
        written = lambda value: "{ " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + " }" if isinstance(value, dict) else json.dumps(value)
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as plan:
            plan.write("".join(f"{key} = {written(value)}\n" for key, value in link.items()))
            plan.flush()
            command = ["ip", "netns", "exec", namespace, LONGFAT, "link", "drive", "--plan", plan.name, "--a", "a", "--b", "b", "--json"]
            driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert driver.stdout.readline() == "ready\n", "the link did not start"
        return driver

    def stop(self):
        if self.wire:
            self.wire.stop()
        if self.driver:
            self.driver.send_signal(signal.SIGTERM)
            self.driver.communicate()


def measure(name, keep, seed):
    kind = KINDS[name]
    capture = pathlib.Path(keep) / f"{name}.pcap"
    with Bed(kind, seed) as bed:
        path = Path(bed, kind)
        place = bed.sender if kind.at == "sender" else bed.receiver
        dump = subprocess.Popen(
            ["ip", "netns", "exec", place, "tcpdump", "-i", "eth", "-s", str(kind.snap), "-B", "65536", "-w", capture, "--immediate-mode", "tcp or udp"],
            stderr=subprocess.PIPE, text=True,
        )
        dump.stderr.readline()
        time.sleep(0.4)
        info = kind.programs(Ends(bed, kind))
        time.sleep(0.4)
        dump.send_signal(signal.SIGINT)
        said = dump.communicate()[1]
        path.stop()
        kernel = kernel_facts(info, bed.counters(bed.sender), bed.counters(bed.receiver))
    if kind.wrap:
        wrap.wrapped(capture, kind.wrap)
    ours = longfat(capture, bed.addresses(kind)[0])
    if kind.sysctls.get("tcp_early_retrans") == 0:
        # A lone segment's probe and its timeout come at the same time; this sender makes no probes.
        ours["timeouts"] += ours["tail_probe_segments"]
        ours["probes"] -= ours["tail_probe_segments"]
    lost = [line for line in said.splitlines() if "dropped by kernel" in line]
    counts, different = agreement.compare(capture)
    return {
        "kind": name, "exact": [key for key in kind.exact if key not in kind.unseen], "unseen": kind.unseen, "capture_lost": lost[0] if lost else "?", "kernel": kernel, "longfat": ours,
        "agreement": counts, "different": different,
    }


def kernel_facts(info, counters, receiver):
    """Offsets of struct tcp_info (include/uapi/linux/tcp.h)."""
    facts = {
        "resent_segments": counters["TcpRetransSegs"],
        "timeouts": counters["TcpExtTCPTimeouts"],
        "probes": counters["TcpExtTCPLossProbes"],
        "spurious_timeouts": counters["TcpExtTCPSpuriousRTOs"],
        "window_probes": counters["TcpExtTCPWinProbe"] if "TcpExtTCPWinProbe" in counters else None,
        "keep_alives": counters["TcpExtTCPKeepAlive"],
        "damaged_packets": receiver["TcpInCsumErrors"],
    }
    if info:
        bytes_sent, bytes_retrans = struct.unpack_from("QQ", info, 200)
        dsack_dups, reord_seen = struct.unpack_from("II", info, 216)
        facts |= {"resent_bytes": bytes_retrans, "bytes_sent": bytes_sent, "dsacks": dsack_dups, "reorderings": reord_seen}
    return facts


SUMMED = (
    "resent_segments", "resent_bytes", "timeouts", "fast_segments", "timeout_segments", "go_back_segments", "tail_probe_segments",
    "spurious_segments", "spurious_by_dsack", "dsacks", "payload_bytes", "duplicate_acks", "reordered_segments", "lost_before_segments",
    "unseen_bytes", "keep_alives", "window_probes", "new_data_probes", "damaged_packets", "duplicate_packets", "foreign_packets",
)


def longfat(capture, sender):
    """Sums over what the sender sent, and the kinds of findings."""
    analysis = agreement.analysis(capture)
    sums = collections.Counter(dict.fromkeys(SUMMED, 0))
    for flow in analysis["flows"]:
        for one in flow["directions"]:
            if one["from"].strip("[").startswith((sender + ":", sender + "]")):
                sums.update({key: one[key] for key in SUMMED})
    findings = sorted({finding["kind"] for flow in analysis["flows"] for finding in flow["findings"]})
    # Linux counts those that send something again and those that carry new data.
    probes = sums["tail_probe_segments"] + sums["new_data_probes"]
    return dict(sums) | {"probes": probes, "connections": len(analysis["flows"]), "findings": findings}


def table(rows, seed):
    text = [f"# Truth, {datetime.date.today()}, kernel {platform.release()}, seed {seed}", ""]
    text += ["Sender's kernel / `longfat analyze`, where the kind has that counter; then how many of its directions' figures are those of the others (`agreement.md`).", ""]
    text += ["| kind | segments sent again | octets sent again | timeouts | tail loss probes | damaged | fast + timeout + go-back + probe | tshark | tcptrace | findings |"]
    text += ["|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        kernel, ours = row["kernel"], row["longfat"]
        told = [f"{kernel[key]} / {ours[key]}" if key in row["exact"] else "" for key in ("resent_segments", "resent_bytes", "timeouts", "probes", "damaged_packets")]
        causes = " + ".join(str(ours[key]) for key in ("fast_segments", "timeout_segments", "go_back_segments", "tail_probe_segments"))
        others = [f"{agreed} of {all_}" if all_ else "does not see it" for agreed, all_ in row["agreement"].values()]
        text.append(f"| {row['kind']} | {' | '.join(told)} | {causes} | {' | '.join(others)} | {', '.join(ours['findings'])} |")
    text += ["", "Not compared, since no capture can show them:", ""]
    for row in rows:
        for key, why in row["unseen"].items():
            text.append(f"- `{key}` of {row['kind']} ({row['kernel'][key]} by the kernel, {row['longfat'][key]} in the capture): {why}.")
    compared = [row["kernel"][key] == row["longfat"][key] for row in rows for key in row["exact"]]
    text += ["", f"Of {len(compared)} counters compared {sum(compared)} agree."]
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="directory for the captures")
    parser.add_argument("--generated", help="directory of made-up captures", type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="keep the results under results/DATE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep = args.keep or scratch
        pathlib.Path(keep).mkdir(parents=True, exist_ok=True)
        rows = []
        for name in args.kind or KINDS:
            rows.append(measure(name, keep, args.seed))
            print(json.dumps(rows[-1] | {"different": len(rows[-1]["different"])}), file=sys.stderr, flush=True)
    text = table(rows, args.seed)
    compared = [(row["kind"], row["agreement"], row["different"]) for row in rows]
    for capture in sorted(args.generated.glob("*.pcap")) if args.generated else []:
        compared.append((f"made-up {capture.stem}", *agreement.compare(capture)))
    told = agreement.told(compared)
    print(text, told, sep="\n")
    if args.write:
        directory = HERE / "results" / datetime.date.today().isoformat()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "truth.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "truth.md").write_text(text)
        (directory / "agreement.md").write_text(told)
    missed = [(row["kind"], key, row["kernel"][key], row["longfat"][key]) for row in rows for key in row["exact"] if row["kernel"][key] != row["longfat"][key]]
    for kind, key, kernel, ours in missed:
        print(f"truth: {kind}: {key}: the kernel says {kernel}, the capture {ours}", file=sys.stderr)
    open_ones = [row for _, _, different in compared for row in different if row[-1] == "?"]
    for row in open_ones:
        print(f"truth: without a reason: {row}", file=sys.stderr)
    sys.exit(1 if missed or open_ones else 0)


if __name__ == "__main__":
    main()
