"""`longfat lab query`: SQL over results, by DuckDB."""

import json
import shutil
import subprocess

import pytest

from conftest import environment


@pytest.fixture()
def ask(program, sweep):
    def ask(*arguments, code=0, where=environment()):
        asked = subprocess.run([program, "lab", "query", *arguments], cwd=sweep.parent, env=where, capture_output=True, text=True)
        assert asked.returncode == code, asked.stderr
        return asked.stdout if code == 0 else asked.stderr

    return ask


def test_every_figure_is_a_row_with_its_axes(ask, sweep):
    query = (
        "select rate, rate_bps, count(*) as runs, avg(goodput_bps / rate_bps) as used from results "
        "where of = 'measured' and stream is null group by all order by rate_bps"
    )
    slow, fast = json.loads(ask("--json", query, "out"))
    assert (slow["rate"], slow["runs"], fast["rate_bps"]) == ("5Mbit", 6, 20e6)
    assert 0.5 < fast["used"] < 1.3
    assert "nothing" in ask("select nothing", "out", code=2)


def test_a_result_of_before_there_were_datasets_is_found_below_a_directory_and_joined_with_its_samples(ask, sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "some/out")
    (copy / "results.parquet").unlink()
    samples = "select count(distinct cell) as cells from tcp join results using (run)"
    assert ask("--csv", samples, str(tmp_path / "some")) == "cells\n4\n"


def test_a_session_under_way_is_asked_about_its_runs_so_far_and_its_files_are_left_alone(ask, sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    result = json.loads((copy / "result.json").read_text())
    runs = [run for run in result["runs"] if "rate=5Mbit" in run["path"]]
    (copy / "result.json").write_text(json.dumps({**result, "status": "running", "runs": runs}))
    (copy / "results.parquet").write_text("not whole")
    assert ask("--csv", "select distinct rate from results", str(copy)) == "rate\n5Mbit\n"
    assert (copy / "results.parquet").read_text() == "not whole"


def test_without_duckdb_what_to_install_is_named(ask, bare_python):
    assert "-m pip install duckdb" in ask("select 1", "out", code=3, where=environment(bare_python))
