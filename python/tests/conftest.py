"""A small sweep, simulated once for all tests, by the program that LONGFAT names."""

import os
import subprocess
from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

ROOT = Path(__file__).resolve().parents[2]

SPEC = """
name = "small"
title = "A small sweep"
warmup = "200ms"
duration = "500ms"
repeats = 3
focus = "measured"
[hosts.a]
[hosts.b]
[links.path]
between = ["a", "b"]
queue = { limit = "50KB" }
[flows.measured]
from = "a"
to = "b"
cc = "reno"
streams = 2
[sweep]
"links.path.rate" = ["5Mbit", "20Mbit"]
"links.path.delay" = ["10ms", "2ms"]
"""


@pytest.fixture(scope="session")
def program():
    path = Path(os.environ.get("LONGFAT", ROOT / "target/debug/longfat"))
    assert path.is_file(), f"{path} is not there; build it, or name it in LONGFAT"
    return str(path.resolve())


@pytest.fixture(scope="session")
def sweep(program, tmp_path_factory):
    place = tmp_path_factory.mktemp("sweep")
    (place / "spec.toml").write_text(SPEC)
    subprocess.run([program, "lab", "run", "spec.toml", "--backend", "sim", "-o", "out"], cwd=place, check=True)
    return place / "out"
