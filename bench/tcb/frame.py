"""What the benchmarks of this folder share: their program, a network namespace of their own, the place of results."""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import statistics
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CLONE_NEWNET = 0x40000000


def parser(doc, rounds):
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--program", default=str(ROOT / "target/release/longfat"))
    return made


def enter_own_namespace():
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):  # os.unshare came with Python 3.12
        raise SystemExit(f"a network namespace of its own: {os.strerror(ctypes.get_errno())}; run it with sudo")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def spread(ratios):
    """Median, quartiles and extremes of the ratios of single rounds."""
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    figures = {"median": statistics.median(ratios), "quartiles": [low, high], "extremes": [min(ratios), max(ratios)]}
    return {name: [round(v, 4) for v in value] if isinstance(value, list) else round(value, 4)
            for name, value in figures.items()}


def verdict(what, ratios, bound):
    """One line for people: the ratio, its spread, and whether the aim is met."""
    found = spread(ratios)
    met = "met" if found["median"] <= bound else "MISSED"
    low, high = found["quartiles"]
    return f"{what}: {found['median']:.3f} (quartiles {low:.3f} to {high:.3f}, {len(ratios)} rounds); aim {bound}: {met}"


def keep(name, program, figures):
    """Appends a result to results/DATE/NAME.jsonl and prints it."""
    result = {
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "program": os.path.relpath(program, ROOT),
        "load": os.getloadavg()[0],
        **figures,
    }
    folder = HERE / "results" / datetime.date.today().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.jsonl", "a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result, indent=1))
