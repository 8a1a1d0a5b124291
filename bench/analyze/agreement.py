#!/usr/bin/env python3
"""`longfat analyze` beside tshark and tcptrace, connection by connection and direction by direction, on any captures.

    cargo run -p longfat-analyze --example kinds -- kinds/      # thirty kinds of made-up traffic
    bench/analyze/agreement.py kinds/*.pcap                      # a table; every disagreement with its reason
    bench/analyze/agreement.py kernel/*.pcap --write             # kept under results/DATE

Captures of real kernel traffic come from `truth.py --keep kernel/`. A disagreement that no reason here covers is printed with `?`, and the
exit code is 1. Round trips agree within 2 %, or what the programs
round to.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ANALYZE = os.environ.get("LONGFAT_ANALYZE", str(HERE.parent.parent / "target/release/longfat"))
MEASURES = ("packets", "payload", "again", "disordered", "zero_windows", "rtt_least", "rtt_mean", "rtt_most")
ROUND_TRIPS = ("rtt_least", "rtt_mean", "rtt_most")
FLAGS = ("retransmission", "fast_retransmission", "spurious_retransmission", "out_of_order", "zero_window")

# (tool, measure): why the other program differs, and that ours is right unless it says otherwise.
REASONS = {
    ("tshark", "again"): "tshark calls what comes within 3 ms, or fills a gap, out of order, and counts copies and data that was recorded behind its acknowledgement as sent again, but no SYNs",
    ("tshark", "disordered"): "tshark calls retransmissions that follow a gap within 3 ms, or the initial RTT, out of order",
    ("tshark", "zero_windows"): "tshark counts every packet with a window of zero, we the times it was closed",
    ("tshark", "rtt_least"): "tshark times each segment to the ACK that covers it, SYN and FIN among them, we the newest segment of an ACK",
    ("tshark", "rtt_mean"): "tshark has a sample for SYNs and for segments whose acknowledgement waited behind a loss; Karn's rule and SACK refuse those here",
    ("tshark", "rtt_most"): "tshark has a sample for SYNs and for segments whose acknowledgement waited behind a loss; Karn's rule and SACK refuse those here",
    ("tcptrace", "again"): "tcptrace counts window probes, copies and data recorded behind its acknowledgement as sent again, and what an incomplete capture shows twice",
    ("tcptrace", "disordered"): "tcptrace calls whatever is below the highest octet and seen first out of order; here it is lost before the capture when its timestamp or IP identification is newer",
    ("tcptrace", "zero_windows"): "tcptrace counts every packet with a window of zero, we the times it was closed",
    ("tcptrace", "payload"): "tcptrace counts copies and window probes as data; here copies count once, and probes when the receiver takes them",
    ("tcptrace", "packets"): "tcptrace begins a connection anew after a reset or a long silence",
    ("tcptrace", "rtt_least"): "tcptrace has samples for the SYN, and for every segment of the ACK's last one only",
    ("tcptrace", "rtt_mean"): "tcptrace has samples for the SYN, and refuses fewer after losses (Karn's rule for each segment)",
    ("tcptrace", "rtt_most"): "tcptrace has samples for the SYN, and refuses fewer after losses (Karn's rule for each segment)",
    ("tshark", "payload"): "tshark's lengths count copies and window probes; here copies count once, and probes when the receiver takes them",
}
# What the capture lacks is withheld here, and told by the others.
WITHHELD = "withheld here: the capture lacks what it would need"
NO_SAMPLE = "tcptrace tells 0 when it has no sample; here the answer to the SYN is one"


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def ours(capture):
    found = {}
    for flow in json.loads(output(ANALYZE, "analyze", "--json", capture))["flows"]:
        for one in flow["directions"]:
            milliseconds = lambda key: None if one[key] is None else one[key] / 1e3
            found[(one["from"], one["to"])] = {
                "packets": one["packets"], "payload": one["payload_bytes"], "again": one["resent_segments"],
                "disordered": one["reordered_segments"], "zero_windows": one["zero_windows"],
                "rtt_least": milliseconds("least_rtt_us"), "rtt_mean": milliseconds("mean_rtt_us"),
                "rtt_most": milliseconds("most_rtt_us"), "missing": one["missing"],
            }
    # Zero windows are the receiver's to the others: they count the packets that offer them.
    zero = {ends: figures["zero_windows"] for ends, figures in found.items()}
    for ends, figures in found.items():
        figures["zero_windows"] = zero.get(ends[::-1], 0)
    return found


def tshark(capture):
    fields = ["ip.src", "tcp.srcport", "ip.dst", "tcp.dstport", "tcp.len", "tcp.analysis.ack_rtt"]
    fields += [f"tcp.analysis.{flag}" for flag in FLAGS]
    asked = [part for field in fields for part in ("-e", field)]
    found, rtts = {}, {}
    for line in output("tshark", "-r", capture, "-Y", "tcp", "-T", "fields", "-E", "separator=,", *asked).splitlines():
        source, port, destination, to, length, rtt, *flags = line.split(",")
        ends = (f"{source}:{port}", f"{destination}:{to}")
        figures = found.setdefault(ends, dict.fromkeys(MEASURES[:5], 0))
        figures["packets"] += 1
        figures["payload"] += int(length)
        told = dict(zip(FLAGS, map(bool, flags)))
        figures["again"] += told["retransmission"] or told["fast_retransmission"] or told["spurious_retransmission"]
        figures["disordered"] += told["out_of_order"]
        figures["zero_windows"] += told["zero_window"]
        if rtt:
            rtts.setdefault(ends[::-1], []).append(float(rtt) * 1e3)
    for ends, samples in rtts.items():
        if ends in found:
            found[ends] |= {"rtt_least": min(samples), "rtt_mean": sum(samples) / len(samples), "rtt_most": max(samples)}
    return found


TCPTRACE = {
    "total packets": "packets", "actual data bytes": "payload", "rexmt data pkts": "again", "outoforder pkts": "disordered",
    "zero win adv": "zero_windows", "RTT min": "rtt_least", "RTT avg": "rtt_mean", "RTT max": "rtt_most",
}


def tcptrace(capture):
    found, ends = {}, None
    for line in output("tcptrace", "-lrn", capture).splitlines():
        host = re.match(r"\s*host (\w+):\s+(\S+)", line)
        if host:
            ends = (ends[1], host[2]) if ends else (None, host[2])
            continue
        pairs = re.findall(r"([A-Za-z][A-Za-z ]*?):\s+([\d.]+)", line)
        if ends and ends[0] and len(pairs) == 2 and pairs[0][0].strip() in TCPTRACE:
            key = TCPTRACE[pairs[0][0].strip()]
            for side, (_, value) in zip((ends, ends[::-1]), pairs):
                figures = found.setdefault(side, dict.fromkeys(MEASURES[:5], 0))
                figures[key] = float(value) if key in ROUND_TRIPS else figures[key] + int(float(value))
        elif line.startswith("====") or not line.strip():
            ends = None if line.startswith("====") else ends
    return found


# What the programs print is rounded to: tcptrace tells tenths of a millisecond.
ROUNDED_MS = {"tshark": 0.02, "tcptrace": 0.06}


def agree(tool, key, mine, other):
    if mine is None or other is None:
        return mine == other or not (mine or other)
    if key in ROUND_TRIPS:
        return abs(mine - other) <= max(0.02 * other, ROUNDED_MS[tool])
    return mine == other


def compare(capture):
    """How many figures agree with each program, and those that do not."""
    mine, counts, different = ours(capture), {"tshark": [0, 0], "tcptrace": [0, 0]}, []
    for tool, figures in (("tshark", tshark(capture)), ("tcptrace", tcptrace(capture))):
        for ends, own in mine.items():
            theirs = figures.get(ends)
            if theirs is None or own["packets"] == 0:
                continue
            for key in MEASURES:
                value = theirs.get(key)
                counts[tool][1] += 1
                if agree(tool, key, own[key], value):
                    counts[tool][0] += 1
                    continue
                reason = WITHHELD if own[key] is None and own["missing"] else REASONS.get((tool, key), "?")
                if (tool, value) == ("tcptrace", 0.0) and key in ROUND_TRIPS:
                    reason = NO_SAMPLE
                different.append((capture.stem, f"{ends[0]} > {ends[1]}", key, own[key], tool, value, reason))
    return counts, different


def shown(value):
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", nargs="+", type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="keep the results under results/DATE")
    args = parser.parse_args()
    text = [f"# Agreement, {datetime.date.today()}", "", "Figures of each direction that agree, of those compared: packets, payload, segments sent again, out of order, zero windows, round trips (least, mean, greatest).", ""]
    text += ["| capture | tshark | tcptrace |", "|---|---|---|"]
    every = []
    for capture in args.capture:
        counts, different = compare(capture)
        text.append(f"| {capture.stem} | {counts['tshark'][0]} of {counts['tshark'][1]} | {counts['tcptrace'][0]} of {counts['tcptrace'][1]} |")
        every += different
    text += ["", "| capture | direction | figure | longfat | other | its | why |", "|---|---|---|---|---|---|---|"]
    text += [f"| {c} | {d} | {k} | {shown(o)} | {t} | {shown(v)} | {r} |" for c, d, k, o, t, v, r in every]
    print("\n".join(text))
    if args.write:
        directory = HERE / "results" / datetime.date.today().isoformat()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "agreement.md").write_text("\n".join(text) + "\n")
    sys.exit(1 if any(row[-1] == "?" for row in every) else 0)


if __name__ == "__main__":
    main()
