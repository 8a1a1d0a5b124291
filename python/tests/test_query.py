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


RELAYED = """
name = "relayed"
title = "Congestion controls of a sender behind a relay"
warmup = "200ms"
duration = "300ms"
focus = "measured"
[hosts.sender]
[hosts.relay]
forward = true
[hosts.receiver]
[links.lan]
between = ["sender", "relay"]
[links.path]
between = ["relay", "receiver"]
rate = "20Mbit"
delay = "2ms"
[flows.measured]
from = "sender"
to = "receiver"
[relays.pep]
host = "relay"
intercept = ["lan"]
cc_client = "reno"
cc_server = "cubic"
[sweep]
"flows.measured.cc" = ["lf_reno", "lf_highspeed"]
role = { set = "links.path.mtu", values = [1500] }
"""


def test_a_column_of_samples_is_the_files_own_where_an_axis_is_called_like_it(ask, program, tmp_path):
    (tmp_path / "spec.toml").write_text(RELAYED)
    made = subprocess.run([program, "lab", "run", "spec.toml", "--backend", "sim", "-o", "out"], cwd=tmp_path, capture_output=True)
    assert (tmp_path / "out/results.parquet").is_file(), made.stderr
    out = str(tmp_path / "out")
    found = ask("--csv", "select distinct role, cc from tcp where role <> 'receiver' order by all", out).splitlines()
    # Longfat's own is what the simulator knows of a kernel's congestion control.
    assert found[1:3] == ["relay_in,lf_reno", "relay_out,lf_cubic"], found
    assert found[3:] == ["sender,lf_highspeed", "sender,lf_reno"]
    query = "select distinct results.cc = tcp.cc from tcp join results using (run) where tcp.role = 'sender'"
    assert ask("--csv", query, out).splitlines()[1:] == ["true"]
    assert ask("--csv", "select count(*) from tcp where role = '1500'", out).splitlines()[1:] == ["0"]


def test_an_axis_of_numbers_in_one_result_and_of_names_in_another_has_the_labels_that_the_files_have(ask, program, tmp_path):
    axis = "[sweep]\nloss = { set = \"links.path.loss\", values = [0, 1e-5] %s }\n"
    for result, labels in (("numbers", ""), ("names", ", labels = [\"none\", \"some\"]")):
        spec = RELAYED.partition("[sweep]")[0].replace("to = \"receiver\"", "to = \"receiver\"\ncc = \"reno\"")
        (tmp_path / "spec.toml").write_text(spec + axis % labels)
        made = subprocess.run([program, "lab", "run", "spec.toml", "--backend", "sim", "-o", result], cwd=tmp_path, capture_output=True)
        assert (tmp_path / result / "results.parquet").is_file(), made.stderr
    query = "select distinct loss, loss_number from results order by all"
    both = [str(tmp_path / result) for result in ("numbers", "names")]
    expected = ["0,0.0", "0.00001,0.00001", "none,0.0", "some,0.00001"]
    for results in (both, both[::-1]):
        assert ask("--csv", query, *results).splitlines()[1:] == expected
    assert ask("--csv", "select distinct loss from results where loss > 0", both[0]).splitlines()[1:] == ["0.00001"]


def asked(program, *arguments):
    return subprocess.run([program, "lab", "query", *arguments], env=environment(), capture_output=True, text=True)


def test_a_damaged_file_is_named_and_left_out_and_not_opened_by_queries_of_other_tables(program, sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    damaged = copy / "rate=5Mbit/delay=10ms/repeat=2/tcp.parquet"
    damaged.write_text("rubbish")
    runs = "select count(distinct run) as runs from"
    other = asked(program, "--csv", f"{runs} queue", str(copy))
    assert (other.returncode, other.stdout, other.stderr) == (0, "runs\n12\n", "")
    mine = asked(program, "--csv", f"{runs} TCP", str(copy))
    assert (mine.returncode, mine.stdout) == (0, "runs\n11\n") and str(damaged) in mine.stderr
    assert "tcp" in asked(program, "--csv", "show tables", str(copy)).stdout.splitlines()
    for path in copy.rglob("tcp.parquet"):
        path.write_text("rubbish")
    none = asked(program, f"{runs} tcp", str(copy))
    assert none.returncode == 2 and str(damaged) in none.stderr and "tcp does not exist" in none.stderr
    whole = shutil.copytree(sweep, tmp_path / "whole")
    (copy / "results.parquet").write_text("rubbish")
    one = asked(program, "--csv", "select count(distinct result) from results", str(copy), str(whole))
    assert one.returncode == 0 and one.stdout.splitlines()[1:] == ["1"] and "results.parquet" in one.stderr


def test_a_run_whose_manifest_is_damaged_is_left_out_of_a_table_that_is_made_anew(program, sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    (copy / "results.parquet").unlink()
    (copy / "rate=5Mbit/delay=10ms/repeat=2/manifest.json").write_text("{")
    found = asked(program, "--csv", "select count(distinct run) from results", str(copy))
    assert found.returncode == 0 and found.stdout.splitlines()[1:] == ["11"] and "repeat=2/manifest.json" in found.stderr


def test_an_answer_without_rows_has_its_columns(ask, sweep, tmp_path):
    assert ask("--csv", "select cell, status from results where false", "out") == "cell,status\n"
    content = json.loads((sweep / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**content, "status": "running", "runs": []}))
    heading = ask("--csv", "select * from results", str(tmp_path)).split(",")
    assert heading[:3] == ["result", "run", "experiment"] and "cell" in heading


def test_columns_of_one_name_are_all_in_an_object(ask):
    rows = json.loads(ask("--json", "select a.x, b.x from (select 1 as x) a, (select 2 as x) b", "out"))
    assert rows == [{"x": 1, "x_1": 2}]


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
