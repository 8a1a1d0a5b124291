#!/usr/bin/env python3
"""The attacks that have figures to keep, on release builds: what the tests that make them print.

    sudo bench/strangers/bars.py             # builds the tests; as a user that may make network namespaces
    bench/strangers/bars.py --only transfer

100,000 SYNs from invented addresses beside 100 living clients, before a relay that answers early and one that answers after the
server, with what cannot be relayed passed and refused; and 10,000 idle peers at 'transfer serve'. Fails where a test does. Appends
to results/DATE/raw.txt.
"""

import argparse
import datetime
import os
import pathlib
import platform
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TRIALS = {
    "relay": ["-p", "longfat-relay", "--test", "reliability", "beside_100_000_spoofed_syns", "--", "--ignored"],
    "transfer": ["-p", "longfat-transfer", "--test", "strangers", "ten_thousand_idle_peers", "--"],
}
#: Both ends of ten thousand connections are in one process each.
DESCRIPTORS = 20_000


def tried(arguments):
    # The server of transfers that the trial starts.
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "longfat-transfer", "--examples"], cwd=ROOT, check=True)
    command = ["cargo", "test", "--release", "--locked", *arguments, "--nocapture", "--test-threads", "1"]
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    print(done.stdout)
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TRIALS)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    now = datetime.datetime.now(datetime.timezone.utc)
    revision = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()
    to = pathlib.Path(__file__).parent / "results" / f"{now:%Y-%m-%d}" / "raw.txt"
    to.parent.mkdir(parents=True, exist_ok=True)
    failed = False
    with to.open("a") as raw:
        raw.write(f"# {now:%Y-%m-%dT%H:%M:%SZ} {revision}, Linux {platform.release()}, {os.cpu_count()} processors\n")
        for name in [options.only] if options.only else TRIALS:
            done = tried(TRIALS[name])
            failed |= done.returncode != 0
            raw.write(f"## {name}: exit code {done.returncode}\n{done.stdout}")
    return int(failed)


sys.exit(main())
