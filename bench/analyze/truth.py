#!/usr/bin/env python3
"""`longfat analyze` beside the sender's kernel, tcptrace and tshark, on real kernel TCP over a lossy emulated path.

    bench/analyze/truth.py                 # every case; exit code 1 when a kernel counter does not agree
    bench/analyze/truth.py --case loss1    # one of them
    bench/analyze/truth.py --keep DIR      # keep the captures
    bench/analyze/truth.py --write         # results into results/DATE/truth.md

Each case: two namespaces with an emulated link between them (`longfat link drive`), offloads off, so that the capture
(tcpdump at the sender, headers only) sees segments as the kernel counts them; one transfer; then the sender's TCP_INFO
and its namespace's counters against what the capture says. Needs root, iproute2, nftables, ethtool, tcpdump; tcptrace and tshark
are compared where they are installed.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGFAT = os.environ.get("LONGFAT", str(ROOT / "target/release/longfat"))
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
# No case's transfer takes half of this.
TRANSFER_LIMIT_S = 120
ANALYZE = os.environ.get("LONGFAT_ANALYZE", LONGFAT)

# name: link, bytes to send, sysctls of the sender, congestion control, seconds of blackout
CASES = {
    "clean": ({"rate": "50Mbit", "delay": "10ms"}, 8_000_000, {}, "cubic", 0),
    "loss1": ({"rate": "50Mbit", "delay": "10ms", "loss": 0.01}, 8_000_000, {}, "cubic", 0),
    "loss5": ({"rate": "50Mbit", "delay": "5ms", "loss": 0.05}, 3_000_000, {}, "reno", 0),
    "queue": ({"rate": "30Mbit", "delay": "20ms", "queue": {"discipline": "droptail", "limit": "30KB"}}, 12_000_000, {}, "cubic", 0),
    "reorder": ({"rate": "30Mbit", "delay": "10ms", "jitter": "6ms", "reorder": True}, 6_000_000, {}, "cubic", 0),
    "nosack": ({"rate": "30Mbit", "delay": "10ms", "loss": 0.01}, 3_000_000, {"tcp_sack": 0}, "reno", 0),
    "blackout": ({"rate": "30Mbit", "delay": "10ms"}, 12_000_000, {}, "cubic", 1.5),
    "noprobe": ({"rate": "30Mbit", "delay": "10ms", "loss": 0.03}, 3_000_000, {"tcp_early_retrans": 0}, "cubic", 0),
}


def run(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def inside(namespace, function):
    """Runs a function in a namespace, in a thread of its own; gives back a handle to its result."""
    box = {}

    def body():
        try:
            with open(f"/run/netns/{namespace}") as handle:
                if LIBC.setns(handle.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns {namespace}")
            box["result"] = function()
        except Exception as error:  # handed on below
            box["error"] = error

    # A thread that is stuck must not keep the program from ending.
    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def result():
        thread.join(TRANSFER_LIMIT_S)
        if thread.is_alive():
            raise TimeoutError(f"nothing came of the work in {namespace} within {TRANSFER_LIMIT_S} s")
        if "error" in box:
            raise box["error"]
        return box["result"]

    return result


class Bed:
    def __enter__(self):
        tag = f"lftruth{os.getpid()}"
        self.sender, self.receiver, self.link = (f"{tag}-{role}" for role in ("s", "r", "l"))
        for name in (self.sender, self.receiver, self.link):
            run("ip", "netns", "add", name)
        ends = ((self.sender, "a", "10.78.0.1/24", 1), (self.receiver, "b", "10.78.0.2/24", 2))
        for name, end, address, number in ends:
            peer = ["type", "veth", "peer", "name", "eth", "netns", name]
            run("ip", "-n", self.link, "link", "add", "name", end, *peer)
            run("ip", "-n", self.link, "link", "set", "dev", end, "up")
            run("ip", "-n", name, "link", "set", "dev", "eth", "address", f"02:00:00:00:78:{number:02x}", "up")
            run("ip", "-n", name, "address", "add", address, "dev", "eth")
            # A SYN that waits for a lost ARP request times out, is counted, and nothing is sent (TCPSpuriousRtxHostQueues).
            neighbour = ["10.78.0.%d" % (3 - number), "lladdr", f"02:00:00:00:78:{3 - number:02x}"]
            run("ip", "-n", name, "neighbour", "add", *neighbour, "dev", "eth", "nud", "permanent")
            run("ip", "netns", "exec", name, "ethtool", "-K", "eth", "tso", "off", "gso", "off", "gro", "off")
        return self

    def __exit__(self, *_):
        for name in (self.sender, self.receiver, self.link):
            subprocess.run(["ip", "netns", "del", name], check=False)

    def counters(self):
        """Counters of the sender's namespace."""
        found = {}
        for path in ("/proc/net/netstat", "/proc/net/snmp"):
            text = subprocess.check_output(["ip", "netns", "exec", self.sender, "cat", path], text=True)
            lines = text.splitlines()
            for names, values in zip(lines[::2], lines[1::2]):
                prefix, *names = names.replace(":", "").split()
                found.update({prefix + n: int(v) for n, v in zip(names, values.split()[1:])})
        return found

    def drive(self, link):
        spec = tempfile.NamedTemporaryFile("w", suffix=".toml")
        for key, value in link.items():
            text = json.dumps(value) if not isinstance(value, dict) else "{ " + ", ".join(f'{k} = "{v}"' for k, v in value.items()) + " }"
            spec.write(f"{key} = {text}\n")
        spec.flush()
        driver = subprocess.Popen(
            ["ip", "netns", "exec", self.link, LONGFAT, "link", "drive", "--plan", spec.name, "--a", "a", "--b", "b", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        assert driver.stdout.readline() == "ready\n", "the link did not start"
        spec.close()
        return driver

    def transfer(self, size, cc, blackout):
        """Sends; gives back the sender's TCP_INFO read when everything was acknowledged."""
        listening = threading.Event()

        def receive():
            with socket.create_server(("10.78.0.2", 5001)) as server:
                listening.set()
                peer, _ = server.accept()
                while peer.recv(1 << 16):
                    pass
                peer.close()

        def send():
            with socket.socket() as stream:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, cc.encode())
                stream.connect(("10.78.0.2", 5001))
                stream.sendall(bytes(size))
                while struct.unpack("i", __import__("fcntl").ioctl(stream, 0x5411, b"\0" * 4))[0]:
                    time.sleep(0.01)
                info = stream.getsockopt(socket.IPPROTO_TCP, 11, 300)
                stream.shutdown(socket.SHUT_WR)
                stream.recv(1)
            return info

        received = inside(self.receiver, receive)
        assert listening.wait(5)
        sent = inside(self.sender, send)
        if blackout:
            time.sleep(0.8)
            inside_receiver = ["ip", "netns", "exec", self.receiver, "nft"]
            run(*inside_receiver, "table inet dark { chain in { type filter hook input priority 0; policy drop; }; }")
            time.sleep(blackout)
            run(*inside_receiver, "delete", "table", "inet", "dark")
        info = sent()
        received()
        return info


def measure(name, keep):
    link, size, sysctls, cc, blackout = CASES[name]
    with Bed() as bed:
        for key, value in sysctls.items():
            run("ip", "netns", "exec", bed.sender, "sysctl", "-qw", f"net.ipv4.{key}={value}")
        driver = bed.drive(link)
        capture = pathlib.Path(keep) / f"{name}.pcap"
        dump = subprocess.Popen(
            ["ip", "netns", "exec", bed.sender, "tcpdump", "-i", "eth", "-s", "120", "-B", "65536", "-w", capture, "--immediate-mode", "tcp"],
            stderr=subprocess.PIPE, text=True,
        )
        dump.stderr.readline()
        time.sleep(0.5)
        info = bed.transfer(size, cc, blackout)
        time.sleep(0.5)
        dump.send_signal(signal.SIGINT)
        said = dump.communicate()[1]
        driver.send_signal(signal.SIGTERM)
        driver.communicate()
        kernel = kernel_facts(info, bed.counters())
    said_of_it = longfat(capture)
    if sysctls.get("tcp_early_retrans") == 0:
        # A lone segment's probe and its timeout come at the same time; this sender makes no probes.
        said_of_it["timeouts"] += said_of_it["tail_probe_segments"]
    lost = [line for line in said.splitlines() if "dropped by kernel" in line]
    return {
        "case": name, "cc": cc, "link": link, "capture_lost": lost[0] if lost else "?", "kernel": kernel,
        "longfat": said_of_it, "tcptrace": tcptrace(capture), "tshark": tshark(capture),
    }


def kernel_facts(info, counters):
    """Offsets of struct tcp_info (include/uapi/linux/tcp.h)."""
    (total_retrans,) = struct.unpack_from("I", info, 100)
    bytes_sent, bytes_retrans = struct.unpack_from("QQ", info, 200)
    dsack_dups, reord_seen = struct.unpack_from("II", info, 216)
    return {
        "resent_segments": counters["TcpRetransSegs"],
        "resent_bytes": bytes_retrans,
        "timeouts": counters["TcpExtTCPTimeouts"],
        "probes": counters["TcpExtTCPLossProbes"],
        "bytes_sent": bytes_sent,
        "total_retrans": total_retrans,
        "dsacks": dsack_dups,
        "reorderings": reord_seen,
        "spurious_timeouts": counters["TcpExtTCPSpuriousRTOs"],
    }


def longfat(capture):
    done = subprocess.run([ANALYZE, "analyze", "--json", capture], check=True, capture_output=True, text=True)
    analysis = json.loads(done.stdout)
    flow = max(analysis["flows"], key=lambda flow: flow["packets"])
    data = max(flow["directions"], key=lambda direction: direction["payload_bytes"])
    keys = (
        "resent_segments", "resent_bytes", "timeouts", "fast_segments", "timeout_segments", "go_back_segments",
        "tail_probe_segments", "spurious_segments", "spurious_by_dsack", "dsacks", "payload_bytes", "duplicate_acks",
        "reordered_segments", "lost_before_segments", "unseen_bytes",
    )
    return {key: data[key] for key in keys} | {"rtt_samples": (data["rtt"] or {}).get("count")}


def tcptrace(capture):
    if not shutil.which("tcptrace"):
        return None
    text = subprocess.run(["tcptrace", "-lr", capture], capture_output=True, text=True).stdout
    facts = {}
    for line in text.splitlines():
        name, _, rest = line.strip().partition(":")
        if name in ("rexmt data pkts", "rexmt data bytes", "RTT samples", "outoforder pkts"):
            facts[name] = int(rest.split()[0])
    return facts


def tshark(capture):
    if not shutil.which("tshark"):
        return None
    facts = {}
    flags = ("retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order", "duplicate_ack")
    fields = [part for flag in flags for part in ("-e", f"tcp.analysis.{flag}")]
    text = subprocess.run(["tshark", "-r", capture, "-T", "fields", "-E", "separator=,", *fields], capture_output=True, text=True).stdout
    for line in text.splitlines():
        for flag, value in zip(flags, line.split(",")):
            facts[flag] = facts.get(flag, 0) + bool(value)
    return facts


EXACT = ("resent_segments", "resent_bytes", "timeouts")


def table(rows):
    text = [f"# Truth, {datetime.date.today()}, kernel {platform.release()}", ""]
    text += ["Sender's kernel / `longfat analyze` on a capture at the sender; the last columns are what others make of it.", ""]
    text += ["| case | segments sent again | octets sent again | timeouts | fast + timeout + go-back + probe | spurious | tcptrace rexmt | tshark retransmission (+ spurious, out of order) |"]
    text += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        kernel, ours, tshark = row["kernel"], row["longfat"], row["tshark"] or {}
        exact = [f"{kernel[key]} / {ours[key]}" for key in EXACT]
        kinds = " + ".join(str(ours[key]) for key in ("fast_segments", "timeout_segments", "go_back_segments", "tail_probe_segments"))
        spurious = f"{kernel['dsacks']} / {ours['spurious_by_dsack']}"
        other = f"{tshark.get('retransmission')} (+ {tshark.get('spurious_retransmission')}, {tshark.get('out_of_order')})"
        text.append(f"| {row['case']} | {' | '.join(exact)} | {kinds} | {spurious} | {(row['tcptrace'] or {}).get('rexmt data pkts')} | {other} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--keep", help="directory for the captures")
    parser.add_argument("--write", action="store_true", help="keep the results under results/DATE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        keep = args.keep or scratch
        pathlib.Path(keep).mkdir(parents=True, exist_ok=True)
        rows = []
        for name in args.case or CASES:
            rows.append(measure(name, keep))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    text = table(rows)
    print(text)
    if args.write:
        directory = HERE / "results" / datetime.date.today().isoformat()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "truth.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "truth.md").write_text(text)
    missed = [(row["case"], key, row["kernel"][key], row["longfat"][key]) for row in rows for key in EXACT if row["kernel"][key] != row["longfat"][key]]
    for case, key, kernel, ours in missed:
        print(f"truth: {case}: {key}: the kernel says {kernel}, the capture {ours}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
