"""Results as datasets and tables."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy
import pandas
import pyarrow
import pytest

import longfat
from conftest import ROOT, SPEC


def test_a_sweep_is_a_dataset_over_its_axes_in_their_order(sweep):
    data = longfat.open(sweep)
    assert dict(data.sizes) | {"of": 0} == {"rate": 2, "delay": 2, "repeat": 3, "of": 0}
    assert list(data.rate.values) == ["5Mbit", "20Mbit"]
    assert list(data.delay.values) == ["10ms", "2ms"]
    assert list(data.rate_bps.values) == [5e6, 20e6]
    assert list(data.delay_us.values) == [10e3, 2e3]
    goodput = data.goodput_bps.sel(of="measured")
    assert not goodput.isnull().any()
    used = goodput.median("repeat") / data.rate_bps
    # A short window may get what a loss had held back before it.
    assert ((used > 0.5) & (used < 1.3)).all()
    assert data.attrs["focus"] == "measured" and data.attrs["backend"] == "sim"


def test_every_value_is_the_one_of_the_manifest(sweep):
    data = longfat.open(sweep)
    for run in longfat.manifests(sweep):
        at = {axis["axis"]: axis["label"] for axis in run["axes"]}
        for metric in run["metrics"]:
            if metric.get("stream") is None:
                value = data[metric["metric"]].sel(**at, repeat=run["repeat"], of=metric["of"]).item()
                assert value == metric["value"], (run["path"], metric)


def test_figures_are_those_of_the_parquet_dataset(sweep):
    ours, theirs = longfat.figures(sweep), pandas.read_parquet(sweep / "results.parquet")
    metrics = [name for name in theirs.columns if name.endswith(("_bps", "_us", "_bytes", "_segments"))]
    metrics = [name for name in metrics if name in ours.columns]
    assert "goodput_bps" in metrics and len(metrics) > 5
    for metric in metrics:
        left, right = (frame[metric].dropna().sort_values().to_numpy() for frame in (ours, theirs))
        assert numpy.array_equal(left, right), metric


AXES_LIKE_COLUMNS = """
[sweep]
seed = { set = "flows.measured.streams", values = [1] }
of = { set = "flows.measured.cc", values = ["reno"] }
run = { set = "links.path.rate", values = ["20Mbit"] }
cwnd_segments = { set = "links.path.delay", values = ["2ms"] }
"""


def test_an_axis_may_be_called_like_a_column(program, tmp_path):
    text = SPEC[: SPEC.index("[sweep]")].replace("repeats = 3", "repeats = 1")
    (tmp_path / "spec.toml").write_text(text + AXES_LIKE_COLUMNS)
    subprocess.run([program, "lab", "run", "spec.toml", "--backend", "sim", "-o", "out"], cwd=tmp_path, check=True)
    out = tmp_path / "out"
    run = longfat.manifests(out)[0]
    for frame in (longfat.figures(out), pandas.read_parquet(out / "results.parquet")):
        assert set(frame.seed) == {run["seed"]} and "measured" in set(frame.of)
        assert {float(value) for value in frame.seed_axis} == {1} and set(frame.of_axis) == {"reno"}
        assert set(frame.run_bps) == {20e6}
    data = longfat.open(out)
    assert data.goodput_bps.sel(of="measured", of_axis="reno", seed_axis="1").size == 1
    rows = longfat.samples(out, "tcp", seed="1")
    assert set(rows.run) == {run["path"]} and set(rows.run_axis) == {"20Mbit"}
    assert set(rows.cwnd_segments_axis) == {"2ms"} and rows.cwnd_segments.max() > 2


def test_samples_are_tables_with_the_axes_as_columns(sweep):
    rows = longfat.samples(sweep, "tcp", rate="20Mbit", repeat=2)
    assert set(rows.rate) == {"20Mbit"} and set(rows.delay) == {"10ms", "2ms"} and set(rows.repeat) == {2}
    assert rows.cwnd_segments.max() > 10
    table = longfat.arrow(sweep, "queue")
    assert isinstance(table, pyarrow.Table) and len(set(table["run"].to_pylist())) == 12
    assert len(longfat.open(sweep).lab.samples("tcp", rate="20Mbit", repeat=2)) == len(rows)


def test_one_run_by_itself_can_be_opened(sweep):
    run = longfat.manifests(sweep)[0]["path"]
    assert longfat.open(run).goodput_bps.sel(of="measured").size == 1
    assert len(longfat.samples(run, "flow")) == 2


def test_runs_that_are_not_valid_are_missing_values(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    manifest = copy / "rate=5Mbit/delay=10ms/repeat=2/manifest.json"
    manifest.write_text(manifest.read_text().replace('"status": "done"', '"status": "invalid"'))
    at = {"rate": "5Mbit", "delay": "10ms", "repeat": 2, "of": "measured"}
    assert numpy.isnan(longfat.open(copy).goodput_bps.sel(at).item())
    assert longfat.open(copy, status=("done", "invalid")).goodput_bps.sel(at).item() > 0


def test_one_status_may_be_a_word_and_must_be_one_that_there_is(sweep):
    assert longfat.open(sweep, status="done").equals(longfat.open(sweep, status=["done"]))
    for status in ("finished", ("done", "finished")):
        with pytest.raises(ValueError, match="no run is 'finished'; status is one of done, unexplained, invalid, failed"):
            longfat.open(sweep, status=status)


def test_the_statuses_are_those_that_manifests_write():
    text = (ROOT / "crates/schema/src/run/manifest.rs").read_text()
    assert set(re.findall(r'RunStatus::\w+ => "(\w+)"', text)) == set(longfat.STATUSES)


def test_a_run_whose_manifest_is_damaged_is_left_out_with_a_warning(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    damaged = copy / "rate=5Mbit/delay=10ms/repeat=2/manifest.json"
    for damage in (b"", b'{"schema_version": 4,', b"null", b"\xff"):
        damaged.write_bytes(damage)
        with pytest.warns(UserWarning, match="repeat=2/manifest.json"):
            runs = longfat.manifests(copy)
        assert len(runs) == 11 and str(damaged.parent) not in {run["path"] for run in runs}
    damaged.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(longfat.SchemaError, match="upgrade longfat"):
        longfat.manifests(copy)
    (copy / "result.json").write_text("{")
    with pytest.raises(longfat.SchemaError, match="damaged"):
        longfat.manifests(copy)


def test_a_manifest_that_lacks_or_twists_what_is_read_of_it_is_left_out_with_a_warning(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    damaged = copy / "rate=5Mbit/delay=10ms/repeat=2/manifest.json"
    whole = json.loads(damaged.read_text())
    for twist in ({"seed": None}, {"metrics": "x"}, {"metrics": [{"metric": "goodput_bps"}]}, {"metrics": [7]}, {"axes": [{"axis": "rate"}]}):
        damaged.write_text(json.dumps({**whole, **twist}))
        with pytest.warns(UserWarning, match=f"repeat=2/manifest.json has {next(iter(twist))} of another kind"):
            assert longfat.open(copy).goodput_bps.sel(of="measured").isnull().sum() == 1
    damaged.write_text(json.dumps({key: value for key, value in whole.items() if key != "seed"}))
    with pytest.warns(UserWarning, match="says no seed"):
        assert len(longfat.manifests(copy)) == 11
    (copy / "result.json").write_text(json.dumps({"schema_version": 4}))
    with pytest.raises(longfat.SchemaError, match="result.json says no runs"):
        longfat.open(copy)


def test_a_manifest_that_may_not_be_read_is_left_out_with_a_warning(sweep, monkeypatch):
    hidden = sweep / "rate=5Mbit/delay=10ms/repeat=2/manifest.json"
    read = Path.read_text

    def refuse(path, **how):
        if path == hidden:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, **how)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.warns(UserWarning, match="Permission denied.*repeat=2/manifest.json"):
        assert len(longfat.manifests(sweep)) == 11


def test_an_axis_may_be_called_as_an_argument_is_and_an_unknown_label_is_told_of_those_there_are(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    for manifest in copy.glob("**/manifest.json"):
        content = json.loads(manifest.read_text())
        content["axes"] = [{**at, "axis": {"rate": "path", "delay": "table"}[at["axis"]]} for at in content["axes"]]
        manifest.write_text(json.dumps(content))
    rows = longfat.samples(copy, "tcp", path="5Mbit", table="2ms", repeat=1)
    assert set(rows.path) == {"5Mbit"} and set(rows.table) == {"2ms"}
    assert longfat.open(copy).lab.samples("tcp", path="5Mbit", table="2ms", repeat=1).equals(rows)
    with pytest.raises(ValueError, match="no run of '.*' has rate='11Mbit'; there are 5Mbit, 20Mbit"):
        longfat.samples(sweep, "tcp", rate="11Mbit")
    with pytest.raises(FileNotFoundError, match="no run .* has a table 'nothing'"):
        longfat.samples(sweep, "nothing", rate="5Mbit")


def test_things_of_runs_that_do_not_count_have_their_place(sweep):
    data = longfat.open(sweep, status="failed")
    assert data.goodput_bps.sel(of="measured").isnull().all()


def test_a_damaged_table_is_left_out_with_a_warning_and_a_manifest_without_figures_too(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "copy")
    runs = [copy / run["path"] for run in json.loads((copy / "result.json").read_text())["runs"]]
    whole = set(longfat.samples(copy, "tcp").run)
    (runs[0] / "tcp.parquet").write_bytes((runs[0] / "tcp.parquet").read_bytes()[:100])
    with pytest.warns(UserWarning, match="a table is left out.*tcp.parquet"):
        assert set(longfat.samples(copy, "tcp").run) == whole - {str(runs[0])}
    manifest = json.loads((runs[1] / "manifest.json").read_text())
    del manifest["metrics"]
    (runs[1] / "manifest.json").write_text(json.dumps(manifest))
    with pytest.warns(UserWarning, match="says no metrics"):
        assert len(longfat.manifests(copy)) == len(runs) - 1


def test_an_array_that_would_not_fit_is_refused_with_what_fits(sweep, monkeypatch):
    monkeypatch.setattr("longfat._read._MOST_BYTES", 1000)
    with pytest.raises(ValueError, match=r"2 rate by 2 delay by 3 repeat .* longfat.figures has a row"):
        longfat.open(sweep)


def test_a_result_without_runs_is_refused_with_the_mend(sweep, tmp_path):
    content = json.loads((sweep / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**content, "runs": []}))
    assert longfat.manifests(tmp_path) == []
    for read in (longfat.open, longfat.figures, lambda path: longfat.samples(path, "tcp")):
        with pytest.raises(longfat.SchemaError, match="holds no run yet; wait"):
            read(tmp_path)


def test_what_is_no_run_or_newer_is_refused_with_the_reason(sweep, tmp_path):
    with pytest.raises(longfat.SchemaError, match="neither a result"):
        longfat.open(tmp_path)
    content = json.loads((sweep / "result.json").read_text()) | {"schema_version": 99}
    (tmp_path / "result.json").write_text(json.dumps(content))
    with pytest.raises(longfat.SchemaError, match="schema version 99.*upgrade longfat"):
        longfat.open(tmp_path)
    with pytest.raises(KeyError, match="no axis color; there are rate"):
        longfat.samples(sweep, "tcp", color="red")
    with pytest.raises(FileNotFoundError, match="table 'nothing'"):
        longfat.samples(sweep, "nothing")


def test_an_older_result_is_read():
    data = longfat.open(ROOT / "crates/schema/tests/v1")
    assert data.goodput_bps.sel(case="reno", repeat=1, of="measured").item() == pytest.approx(9_734_826.67)


def test_the_version_read_is_the_version_written():
    text = (ROOT / "crates/schema/src/lib.rs").read_text()
    assert int(re.search(r"SCHEMA_VERSION: u32 = (\d+)", text).group(1)) == longfat.SCHEMA_VERSION
