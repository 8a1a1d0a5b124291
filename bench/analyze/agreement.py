#!/usr/bin/env python3
"""`longfat analyze` beside tshark and tcptrace, connection by connection and direction by direction, on any captures.

    cargo run -p longfat-analyze --example kinds -- kinds/      # thirty kinds of made-up traffic
    bench/analyze/agreement.py kinds/*.pcap                      # a table; every disagreement with its reason
    bench/analyze/agreement.py kernel/*.pcap                     # of real kernel traffic: `truth.py --keep kernel/`

`truth.py` compares all of its kinds in this way. A disagreement that no reason here covers is printed with `?`, and the
exit code is 1. Round trips agree within 2 %, or what the programs
round to.
"""

import argparse
import collections
import datetime
import ipaddress
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
BUNDLES = "the others count packets; here a bundle counts as the segments that it is cut into, as the kernel counts them"
DAMAGED = "the others believe packets whose checksum is wrong, which their receiver threw away; here they are counted apart"
CROSSED = "the answer to a SYN that crossed one's own has its number, and is no retransmission: the kernel counts none"
UNSEEN = {"tshark": "?", "tcptrace": "tcptrace does not read this format, or look into this encapsulation"}
# Counters of a direction that say something is odd.
ODD = ("unseen_bytes", "duplicate_packets", "foreign_packets", "damaged_packets")
NO_SAMPLE = "tcptrace tells 0 when it has no sample; here the answer to the SYN is one"


def output(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def analysis(capture):
    return json.loads(output(ANALYZE, "analyze", "--json", capture))


def numbered(found, first):
    """Connections of the same ends follow each other: the ends, and which of them it is."""
    ordered = sorted(found, key=lambda entry: first(entry[0]))
    seen, out = collections.Counter(), {}
    for key, ends, figures in ((entry[0], *entry[1:]) for entry in ordered):
        name = tuple(sorted(ends))
        order = seen[(name, ends)]
        seen[(name, ends)] += 1
        out[(*ends, order)] = figures
    return out


def ours(capture):
    found = []
    for flow in analysis(capture)["flows"]:
        for one, other in zip(flow["directions"], flow["directions"][::-1]):
            milliseconds = lambda key: None if one[key] is None else one[key] / 1e3
            found.append((flow["first_packet"], (plain(one["from"]), plain(one["to"])), {
                "packets": one["packets"], "payload": one["payload_bytes"], "again": one["resent_segments"],
                # Zero windows are the receiver's to the others: they count the packets that offer them.
                "disordered": one["reordered_segments"], "zero_windows": other["zero_windows"],
                "rtt_least": milliseconds("least_rtt_us"), "rtt_mean": milliseconds("mean_rtt_us"),
                "rtt_most": milliseconds("most_rtt_us"), "missing": one["missing"],
                "odd": {key for key in ODD if one[key] or other[key]}, "bundles": one["oversize_packets"] > 0,
                "crossed": flow["handshake"]["simultaneous_open"],
            }))
    return numbered(found, lambda first: first)


def plain(end):
    """An address has many spellings, and so has an end."""
    address, _, port = end.replace("[", "").replace("]", "").rpartition(":")
    return f"{ipaddress.ip_address(address)}:{port}"


def tshark(capture):
    fields = ["tcp.stream", "ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport", "tcp.len", "tcp.analysis.ack_rtt"]
    fields += [f"tcp.analysis.{flag}" for flag in FLAGS]
    asked = [part for field in fields for part in ("-e", field)]
    streams, rtts = {}, {}
    # Of several headers of a kind, the innermost.
    lines = output("tshark", "-r", capture, "-d", "udp.port==8472,vxlan", "-Y", "tcp", "-T", "fields", "-E", "separator=,", "-E", "occurrence=l", *asked).splitlines()
    for line in lines:
        stream, source4, source6, port, to4, to6, to_port, length, rtt, *flags = line.split(",")
        if not stream:
            continue  # Quoted by ICMP.
        ends = (f"{source4 or source6}:{port}", f"{to4 or to6}:{to_port}")
        key = (int(stream), ends)
        figures = streams.setdefault(key, dict.fromkeys(MEASURES[:5], 0))
        figures["packets"] += 1
        figures["payload"] += int(length or 0)
        told = dict(zip(FLAGS, map(bool, flags)))
        figures["again"] += told["retransmission"] or told["fast_retransmission"] or told["spurious_retransmission"]
        figures["disordered"] += told["out_of_order"]
        figures["zero_windows"] += told["zero_window"]
        if rtt:
            rtts.setdefault((int(stream), ends[::-1]), []).append(float(rtt) * 1e3)
    for key, samples in rtts.items():
        if key in streams:
            streams[key] |= {"rtt_least": min(samples), "rtt_mean": sum(samples) / len(samples), "rtt_most": max(samples)}
    return numbered([(stream, ends, figures) for (stream, ends), figures in streams.items()], lambda stream: stream)


TCPTRACE = {
    "total packets": "packets", "actual data bytes": "payload", "rexmt data pkts": "again", "outoforder pkts": "disordered",
    "zero win adv": "zero_windows", "RTT min": "rtt_least", "RTT avg": "rtt_mean", "RTT max": "rtt_most",
}


def tcptrace(capture):
    found, hosts, number = [], [], 0
    try:
        lines = output("tcptrace", "-lrn", capture).splitlines()
    except subprocess.CalledProcessError:
        return {}  # Not a format of its: each direction is told as not looked into.
    for line in lines:
        connection = re.match(r"TCP connection (\d+):", line)
        if connection:
            number, hosts = int(connection[1]), []
            continue
        host = re.match(r"\s*host (\w+):\s+(\S+)", line)
        if host:
            hosts.append(plain(host[2]))
            if len(hosts) == 2:
                sides = [dict.fromkeys(MEASURES[:5], 0), dict.fromkeys(MEASURES[:5], 0)]
                found += [(number, tuple(hosts), sides[0]), (number, tuple(hosts[::-1]), sides[1])]
            continue
        pairs = re.findall(r"([A-Za-z][A-Za-z ]*?):\s+([\d.]+)", line)
        if len(hosts) == 2 and len(pairs) == 2 and pairs[0][0].strip() in TCPTRACE:
            key = TCPTRACE[pairs[0][0].strip()]
            for figures, (_, value) in zip(sides, pairs):
                figures[key] = float(value) if key in ROUND_TRIPS else figures[key] + int(float(value))
    return numbered(found, lambda connection: connection)


# What the programs print is rounded to: tcptrace tells tenths of a millisecond.
ROUNDED_MS = {"tshark": 0.02, "tcptrace": 0.06}


def agree(tool, key, mine, other):
    if mine is None or other is None:
        return mine == other or not (mine or other)
    if key in ROUND_TRIPS:
        return abs(mine - other) <= max(0.02 * other, ROUNDED_MS[tool])
    return mine == other


def reason(tool, key, own, value):
    """Why a figure of another program is not ours."""
    if own[key] is None and own["missing"]:
        return WITHHELD
    if (tool, value) == ("tcptrace", 0.0) and key in ROUND_TRIPS:
        return NO_SAMPLE
    if "damaged_packets" in own["odd"] and key in ("payload", "again", "disordered"):
        return DAMAGED
    if own["crossed"] and key == "again":
        return CROSSED
    if own["bundles"] and key == "again":
        return BUNDLES
    return REASONS.get((tool, key), "?")


def compare(capture):
    """How many figures agree with each program, and those that do not."""
    mine, counts, different = ours(capture), {"tshark": [0, 0], "tcptrace": [0, 0]}, []
    for tool, figures in (("tshark", tshark(capture)), ("tcptrace", tcptrace(capture))):
        for ends, own in mine.items():
            name = f"{ends[0]} > {ends[1]}" + (f" ({ends[2] + 1})" if ends[2] else "")
            theirs = figures.get(ends)
            if own["packets"] == 0:
                continue
            if theirs is None:
                different.append((capture.stem, name, "all", own["packets"], tool, None, UNSEEN[tool]))
                continue
            for key in MEASURES:
                value = theirs.get(key)
                counts[tool][1] += 1
                if agree(tool, key, own[key], value):
                    counts[tool][0] += 1
                else:
                    different.append((capture.stem, name, key, own[key], tool, value, reason(tool, key, own, value)))
    return counts, different


def shown(value):
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def told(compared):
    """The whole comparison: captures by name, how many figures agree, and those that do not."""
    text = [f"# Agreement, {datetime.date.today()}", "", "Figures of each direction that agree, of those compared: packets, payload, segments sent again, out of order, zero windows, round trips (least, mean, greatest).", ""]
    text += ["| capture | tshark | tcptrace |", "|---|---|---|"]
    for name, counts, _ in compared:
        text.append(f"| {name} | {counts['tshark'][0]} of {counts['tshark'][1]} | {counts['tcptrace'][0]} of {counts['tcptrace'][1]} |")
    text += ["", "| capture | direction | figure | longfat | other | its | why |", "|---|---|---|---|---|---|---|"]
    every = [row for _, _, different in compared for row in different]
    text += [f"| {c} | {d} | {k} | {shown(o)} | {t} | {shown(v)} | {r} |" for c, d, k, o, t, v, r in every]
    return "\n".join(text) + "\n"


def concluded(program, compared, wrong, of_what):
    """Tells what is wrong and what nobody has a reason for; the exit code."""
    open_ones = [f"without a reason: {row}" for _, _, different in compared for row in different if row[-1] == "?"]
    for what in wrong + open_ones:
        print(f"{program}: {what}", file=sys.stderr)
    print(f"{len(compared)} {program}, {len(wrong)} wrong {of_what}, {len(open_ones)} figures without a reason")
    return 1 if wrong or open_ones else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    compared = [(capture.stem, *compare(capture)) for capture in args.capture]
    print(told(compared))
    sys.exit(1 if any(row[-1] == "?" for _, _, different in compared for row in different) else 0)


if __name__ == "__main__":
    main()
