#!/usr/bin/env python3
"""The link driver under one kernel TCP flow: goodput, processor share of the driver, lateness of departures.

    bench/link/measure.py                      # three paths x coalesce 0 and 50us x reno and cubic, 3 rounds
    bench/link/measure.py --path '1Gbit 14.2ms' --coalesce 50us --cc cubic --rounds 1
    bench/link/measure.py --summary bench/link/results/2026-01-31

Two hosts and a link are namespaces made here; the flow is iperf3's, its congestion control set on the route, so that
it holds from the SYN on (iperf3's own -C comes after connecting, and a socket that began under BBR keeps pacing).
The driver's processor share includes what the kernel does for the receiver in the softirq of each frame sent.
Raw figures are appended to results/DATE/raw.jsonl; summary.md beside it is made from them. Needs root, iproute2,
ethtool and iperf3.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import frame

PATHS = ["100Mbit 15ms", "300Mbit 40ms", "1Gbit 14.2ms"]
BUFFERS = ["net.ipv4.tcp_wmem=4096 65536 134217728", "net.ipv4.tcp_rmem=4096 131072 134217728"]


def dropped_at_sender(bed):
    """Frames lost between the sending host and the driver: none of its ring's business, so counted here."""
    table = subprocess.run(
        ["ip", "-n", bed.sender, "-s", "-j", "link", "show", "dev", "eth"], check=True, capture_output=True
    )
    return json.loads(table.stdout)[0]["stats64"]["tx"]["dropped"]


def measure(bed, path, coalesce, cc, seconds):
    rate, delay = path.split()
    frame.run("ip", "-n", bed.sender, "route", "replace", bed.NETWORK, "dev", "eth", "congctl", cc)
    before = dropped_at_sender(bed)
    link = bed.drive(f'rate = "{rate}"', f'delay = "{delay}"', f'coalesce = "{coalesce}"')
    end = flow(bed, seconds)
    return {
        "path": path, "coalesce": coalesce, "cc": cc, "seconds": seconds,
        "mbit": end["sum_received"]["bits_per_second"] / 1e6,
        "retransmits": end["sum_sent"]["retransmits"],
        "dropped_before_link": dropped_at_sender(bed) - before,
        "link": bed.driven(link),
    }


def flow(bed, seconds):
    bed.start(bed.receiver, "iperf3", "-s", "-1", "-p", "5301", "--forceflush", ready="listening")
    client = ["iperf3", "-c", bed.RECEIVER, "-p", "5301", "-t", str(seconds), "-O", "2", "-J"]
    process = bed.popen(bed.sender, *client, stdout=subprocess.PIPE)
    said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"iperf3: {json.loads(said).get('error', said)}")
    return json.loads(said)["end"]


def summarise(directory):
    head, rows = frame.read(directory)
    rows = [row for row in rows if "path" in row]
    text = [f"# Link driver, {head['date']}, kernel {head['kernel']}, {head['cores']} cores", ""]
    text += ["Medians of the rounds; lateness in us; in brackets how many rounds the driver itself called punctual.", ""]
    text += ["| path (one way) | coalesce | cc | goodput Mbit/s | driver CPU | late p50 | late p99 | punctual |"]
    text += ["|---|---|---|---|---|---|---|---|"]
    keys = dict.fromkeys((row["path"], row["coalesce"], row["cc"]) for row in rows)
    for key in keys:
        group = [row for row in rows if (row["path"], row["coalesce"], row["cc"]) == key]
        middle = lambda of: statistics.median(of(row) for row in group)
        forward = lambda field: middle(lambda row: row["link"]["forward"][field])
        punctual = sum(row["link"]["forward"]["punctual"] and row["link"]["backward"]["punctual"] for row in group)
        text.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {middle(lambda row: row['mbit']):.1f}"
            f" | {100 * middle(lambda row: row['link']['cpu_share']):.0f} % | {forward('late_p50_us'):.0f}"
            f" | {forward('late_p99_us'):.0f} | {punctual}/{len(group)} |"
        )
    (directory / "summary.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", action="append", help="'RATE ONE-WAY-DELAY'; may be repeated")
    parser.add_argument("--coalesce", action="append")
    parser.add_argument("--cc", action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--summary", type=pathlib.Path, help="only make summary.md of this directory")
    parser.add_argument("--dry", action="store_true", help="print, keep nothing")
    args = parser.parse_args()
    if args.summary:
        return summarise(args.summary)
    results = None if args.dry else frame.Results(__file__)
    cases = [
        (path, coalesce, cc)
        for path in args.path or PATHS
        for coalesce in args.coalesce or ["0s", "50us"]
        for cc in args.cc or ["reno", "cubic"]
    ]
    with frame.Bed(BUFFERS) as bed:
        for _ in range(args.rounds):
            for case in cases:
                row = measure(bed, *case, args.seconds)
                link, way = row["link"], row["link"]["forward"]
                print(
                    f"{case[0]:13} {case[1]:5} {case[2]:6} {row['mbit']:7.1f} Mbit/s  cpu {100 * link['cpu_share']:3.0f} %"
                    f"  late p50 {way['late_p50_us']} p99 {way['late_p99_us']} max {way['late_max_us']} us"
                    f"  stalls {link['stalls']}  overruns {way['overrun_packets']}+{link['backward']['overrun_packets']}"
                    f"  before link {row['dropped_before_link']}  drops {way['dropped_packets']}"
                    f"  retransmits {row['retransmits']}  queue {way['queue_max_bytes'] / 1e3:.0f} KB"
                    f"  ack p99 {link['backward']['late_p99_us']}",
                    flush=True,
                )
                if results:
                    results.add(row)
    if results:
        summarise(results.directory)


if __name__ == "__main__":
    main()
