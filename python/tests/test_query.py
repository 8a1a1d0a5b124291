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


def stranger(sweep, tmp_path, name):
    """A result with a table of any name, as somebody could send it."""
    copy = shutil.copytree(sweep, tmp_path / "out")
    run = next(copy.rglob("tcp.parquet"))
    shutil.copy(run, run.with_name(f"{name}.parquet"))
    return copy


def test_a_table_of_a_strangers_name_is_no_sql(ask, sweep, tmp_path):
    name = f"x\" as select 1; copy (select 42) to 'planted.csv'; create view \"y"
    copy = stranger(sweep, tmp_path, name)
    assert json.loads(ask("--json", "select 1 as one", str(copy))) == [{"one": 1}]
    planted = [path for place in (sweep.parent, tmp_path) for path in place.rglob("planted.csv")]
    assert not planted


def test_a_query_reaches_its_tables_and_nothing_else(ask, sweep, tmp_path):
    out = tmp_path / "written.csv"
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    assert ask("--csv", "select count(*) > 0 as some from tcp", "out") == "some\ntrue\n"
    for query in (
        f"copy (select 1) to '{out}'",
        f"select * from read_csv('{secret}')",
        f"select * from '{secret}'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set allowed_paths = ['/etc/passwd']",
    ):
        ask(query, "out", code=2)
    assert not out.exists()


def test_a_module_in_the_directory_it_is_asked_in_is_not_run(program, sweep, tmp_path):
    (tmp_path / "duckdb.py").write_text("open('planted', 'w').close()")
    (tmp_path / "glob.py").write_text("open('planted', 'w').close()")
    asked = subprocess.run([program, "lab", "query", "select 1", str(sweep)], cwd=tmp_path, env=environment(), capture_output=True)
    assert asked.returncode == 0, asked.stderr
    assert not (tmp_path / "planted").exists()
