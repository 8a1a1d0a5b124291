#!/usr/bin/env python3
"""Memory of `longfat analyze`: a long capture and one of many flows, made up and read from standard input.

    bench/analyze/bounded.py                    # 10 GB; 1 million flows, a thousand at a time; 1 million at once
    bench/analyze/bounded.py --share 0.01       # a hundredth of each
    bench/analyze/bounded.py --write            # results into results/DATE/bounded.md

The stream is made by `cargo run --release -p longfat-analyze --example stream` while it is read: nothing is stored. Peak
memory is that of the analysing process (GNU time); its speed is bounded by the generator, which shares the cores. Exit code 1
when memory is above 64 MB and, for each flow that is live or ended less than 10 s (of the capture) ago, 56 KB (what 512
stretches of time of both directions take) or, for those of at most 32 packets, 2 KB.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import peak

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LONGFAT = os.environ.get("LONGFAT", str(ROOT / "target/release/longfat"))
STREAM = os.environ.get("LONGFAT_STREAM", str(ROOT / "target/release/examples/stream"))

# name: flows, live at once, data packets each, nanoseconds between packets, flows live or just ended, most KB of each
CASES = {
    "10 GB, 1,000 flows": (1_000, 1_000, 81_000, 1_200, 1_000, 56),
    "1 million flows, 1,000 at a time": (1_000_000, 1_000, 4, 100_000, 20_000, 2),
    "1 million flows at once": (1_000_000, 1_000_000, 4, 1_200, 1_000_000, 2),
}


def measure(name, share):
    flows, live, packets, gap_ns, held, most_kb = CASES[name]
    if packets > 100:
        packets = max(2, int(packets * share))
    else:
        flows = max(1, int(flows * share))
    live, held = min(live, flows), min(held, flows)
    start = time.monotonic()
    made = subprocess.Popen([STREAM, str(flows), str(live), str(packets), str(gap_ns)], stdout=subprocess.PIPE)
    file = tempfile.NamedTemporaryFile("r")
    analyze = peak.watched([LONGFAT, "analyze", "--json", "--most-flows", "10", "-"], file)
    read = subprocess.Popen(analyze, stdin=made.stdout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    made.stdout.close()
    try:
        told = json.loads(read.stdout.read())
        _, status, usage = os.wait4(read.pid, 0)
        read.returncode = os.waitstatus_to_exitcode(status)
        assert read.returncode == 0 and made.wait() == 0, f"{name}: analyze ended with {read.returncode}"
    finally:
        for process in (made, read):
            if process.returncode is None:
                process.kill()
                process.wait()
    assert told["totals"]["flows"] == flows and told["capture"]["damage_count"] == 0, told["totals"]
    total = told["capture"]["packets"]
    return {
        "case": name, "share": share, "flows": flows, "live": live, "packets": total, "gigabytes": total * 82 / 1e9,
        "memory_mb": peak.megabytes(file), "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": time.monotonic() - start, "most_mb": 64 + held * most_kb / 1000,
    }


def table(rows):
    text = [f"# Memory, {datetime.date.today()}, kernel {platform.release()}, {os.cpu_count()} cores", ""]
    text += ["| stream | GB | M packets | peak memory, MB | M packets per CPU second |", "|---|---|---|---|---|"]
    for row in rows:
        speed = row["packets"] / row["cpu_s"] / 1e6
        text.append(f"| {row['case']} | {row['gigabytes']:.2f} | {row['packets'] / 1e6:.1f} | {row['memory_mb']:.0f} | {speed:.1f} |")
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if missing := [program for program in (LONGFAT, STREAM) if not pathlib.Path(program).is_file()]:
        parser.error(f"no {' and no '.join(missing)}; 'make build' and 'cargo build --release -p longfat-analyze --example stream' make them")
    rows = []
    for name in CASES:
        rows.append(measure(name, args.share))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(table(rows))
    if args.write:
        directory = HERE / "results" / datetime.date.today().isoformat()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "bounded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (directory / "bounded.md").write_text(table(rows))
    sys.exit(1 if any(row["memory_mb"] > row["most_mb"] for row in rows) else 0)


if __name__ == "__main__":
    main()
