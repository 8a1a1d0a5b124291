"""A small sweep, simulated once for all tests, by the program that LONGFAT names."""

import os
import subprocess
import sys
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


def environment(python=Path(sys.executable).parent):
    """Where the program finds this Python, or the one of another directory."""
    return {**os.environ, "PATH": f"{python}:{os.environ['PATH']}"}


@pytest.fixture()
def bare_python(tmp_path):
    """The directory of a Python without packages."""
    place = tmp_path / "bare"
    place.mkdir()
    (place / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (place / "python3").chmod(0o755)
    return place


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
