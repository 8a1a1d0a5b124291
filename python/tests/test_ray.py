"""A sweep on a real Ray of two workers on this host: the same as by local processes, whatever is killed meanwhile."""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pandas
import pytest

import longfat
from conftest import SPEC, environment

PATIENCE_S = 600
RUNS = 12
#: Long enough to be met under way.
LONGER = ["--set", "duration=240s"]


@pytest.fixture()
def place(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path


@pytest.fixture()
def start(program, place):
    """Starts `lab run` of the sweep into a directory. What is still there in the end is killed."""
    started = []

    def start(to, *arguments, where=environment()):
        known = {**where, "TMPDIR": str(place)}
        known.pop("RAY_ADDRESS", None)
        command = [program, "lab", "run", "spec.toml", "--backend", "sim", "-o", to, "-j", "2", *arguments]
        process = subprocess.Popen(command, cwd=place, env=known, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ends(process, code=0):
    """What it said, when it has ended as it should."""
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said


def below(ancestor):
    """Every process below one, with its command line."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            commands[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    found, known = {}, {ancestor}
    while grown := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= grown
        found.update({pid: (parents[pid], commands.get(pid, [])) for pid in grown})
    return found


def programs_of(process, count=1):
    """Programs that make a run each, with the workers of Ray that started them, once there are so many."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = below(process.pid)
        making = {pid: parent for pid, (parent, command) in found.items() if command[1:3] == ["lab", "worker"]}
        if len(making) >= count:
            return making
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("no run was begun")


def gone(pids):
    deadline = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def tables(result):
    """Every byte of its runs that is not about when and where they were made."""
    files = [path for path in result.rglob("*/*") if path.name == "plan.json" or path.suffix == ".parquet"]
    return {str(path.relative_to(result)): path.read_bytes() for path in files}


def test_a_sweep_on_ray_is_the_one_of_local_processes_and_a_killed_worker_loses_nothing(start, place, program):
    ends(start("here", *LONGER))
    there = start("there", *LONGER, "--on", "ray")
    killed, worker = next(iter(programs_of(there).items()))
    os.kill(worker, signal.SIGKILL)
    # The program does not outlive who started it.
    gone([killed])
    # A program that is killed says nothing about its run either.
    with contextlib.suppress(ProcessLookupError):
        os.kill(next(iter(programs_of(there))), signal.SIGKILL)
    said = ends(there)
    assert "hosts: 1, runs at once: 2" in said and f"{RUNS}/{RUNS} rate=20Mbit,delay=2ms r3: measured" in said
    here, there = place / "here", place / "there"
    assert tables(there) == tables(here) and len(tables(here)) > 10 * RUNS
    subprocess.run([program, "lab", "verify", there], check=True, stdout=subprocess.DEVNULL)
    assert longfat.open(there).equals(longfat.open(here))
    figures = [pandas.read_parquet(place / "results.parquet") for place in (there, here)]
    pandas.testing.assert_frame_equal(*figures, check_exact=True)
    ours = [run["provenance"]["command_line"] for run in longfat.manifests(there)]
    assert all("--on" in command for command in ours)


def test_ctrl_c_keeps_the_runs_that_were_whole_and_leaves_no_process(start, place):
    process = start("out", "--set", "duration=300s", "--on", "ray")
    programs_of(process, 2)
    every = below(process.pid)
    own = re.findall(r"/tmp/longfat-ray-\w+", str(every))
    process.send_signal(signal.SIGINT)
    said = ends(process, 2)
    assert "interrupted after" in said and "what was made is kept" in said
    gone(every)
    result = json.loads((place / "out/result.json").read_text())
    assert result["status"] == "interrupted" and len(result["runs"]) < RUNS
    assert own and not any(map(os.path.exists, own))
    assert not (place / "out/.packs").exists() and not list(place.glob("tmp*")) and not list(place.glob(".tmp*"))


def test_without_ray_nothing_is_touched_and_what_to_install_is_named(start, place, bare_python):
    said = ends(start("out", "--on", "ray", where=environment(bare_python)), 3)
    assert "Ray for Python" in said and "-m pip install ray" in said
    assert not (place / "out").exists()
