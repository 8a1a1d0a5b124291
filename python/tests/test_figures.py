"""Figures in one line, drawn without a display."""

import json
import shutil

import numpy
import pytest
from matplotlib import pyplot

import longfat


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot.close("all")


def test_a_metric_over_an_axis_is_a_line_per_value_of_the_others(sweep):
    data = longfat.open(sweep)
    axes = data.lab.plot("goodput_bps", x="rate")
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() == "o"]
    assert len(lines) == 2
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["10ms", "2ms"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("rate [Mbit/s]", "goodput [Mbit/s]")
    expected = data.goodput_bps.sel(of="measured", delay="10ms").median("repeat") / 1e6
    assert numpy.allclose(lines[0].get_ydata(), expected) and list(lines[0].get_xdata()) == [5, 20]


def test_a_part_of_a_sweep_is_one_line_without_a_legend(sweep):
    axes = longfat.open(sweep).lab.plot("utilisation_ratio", of="path/forward", rate="5Mbit")
    assert axes.get_xlabel() == "delay [ms]" and axes.get_legend() is None


def points(axes):
    """The points of the one line that was drawn."""
    (line,) = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return list(line.get_xdata()), list(line.get_ydata())


def test_a_repeat_an_axis_or_all_of_them_may_be_pinned(sweep):
    data = longfat.open(sweep)
    goodput = data.goodput_bps.sel(of="measured", rate="5Mbit", delay="2ms") / 1e6
    one = goodput.sel(repeat=2).item()
    assert points(data.lab.plot("goodput_bps", rate="5Mbit", delay="2ms")) == ([2], [goodput.median().item()])
    assert points(data.lab.plot("goodput_bps", x="rate", rate="5Mbit", delay="2ms", repeat=2)) == ([5], [one])
    x, y = points(data.lab.plot("goodput_bps", rate="5Mbit", repeat=2))
    assert x == [2, 10] and y[0] == one
    assert points(data.lab.plot("goodput_bps", x="rate", rate=["5Mbit"], delay=slice("2ms", "2ms"), repeat=2)) == ([5], [one])


def test_what_was_selected_by_one_label_is_drawn_all_the_same(sweep):
    data = longfat.open(sweep)
    expected = points(data.lab.plot("goodput_bps", rate="5Mbit"))
    assert points(data.sel(rate="5Mbit").lab.plot("goodput_bps")) == expected
    assert points(data.sel(of="measured", rate="5Mbit").lab.plot("goodput_bps")) == expected
    one = points(data.lab.plot("goodput_bps", rate="5Mbit", repeat=1))
    assert points(data.sel(repeat=1).lab.plot("goodput_bps", rate="5Mbit")) == one
    x, y = points(data.sel(rate="5Mbit", delay="2ms", repeat=1, of="measured").lab.plot("goodput_bps", x="rate"))
    assert (x, y) == (["5Mbit"], one[1][:1])


def test_where_no_run_counts_the_mend_is_named(sweep):
    with pytest.raises(KeyError, match="takes others in with status="):
        longfat.open(sweep, status="failed").lab.plot("goodput_bps")


def test_runs_that_differ_by_an_axis_called_like_a_column_are_lines_of_their_own(sweep, tmp_path):
    copy = shutil.copytree(sweep, tmp_path / "out")
    for manifest in copy.glob("**/manifest.json"):
        content = json.loads(manifest.read_text())
        content["axes"] = [{**at, "axis": {"rate": "cc", "delay": "flow"}[at["axis"]]} for at in content["axes"]]
        manifest.write_text(json.dumps(content))
    axes = longfat.timeline(copy, "tcp", "cwnd_segments", repeat=1, role="sender", stream=0)
    assert len(axes.get_lines()) == 4
    assert all((numpy.diff(line.get_xdata()) >= 0).all() for line in axes.get_lines())
    assert axes.get_legend().get_texts()[0].get_text().endswith("5Mbit, 10ms")


def test_an_axis_of_numbers_goes_from_the_least_to_the_greatest_whatever_the_order_in_the_file(sweep):
    x, y = points(longfat.open(sweep).lab.plot("goodput_bps", rate="5Mbit"))
    expected = longfat.open(sweep).goodput_bps.sel(of="measured", rate="5Mbit", delay=["2ms", "10ms"]).median("repeat") / 1e6
    assert x == [2, 10] and numpy.allclose(y, expected)


def test_of_what_is_asked_when_it_is_not_clear(sweep):
    with pytest.raises(KeyError, match="path/backward, path/forward; say which with of="):
        longfat.open(sweep).lab.plot("utilisation_ratio")


def test_a_column_over_time_is_a_line_per_connection(sweep):
    axes = longfat.timeline(sweep, "tcp", "cwnd_segments", rate="20Mbit", delay="2ms", repeat=1, role="sender")
    assert len(axes.get_lines()) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time [s]", "cwnd segments")


def test_a_timeline_of_nothing_is_refused_with_what_there_is(sweep):
    with pytest.raises(ValueError, match="no row of 'tcp' has flow='nix'; there are measured"):
        longfat.timeline(sweep, "tcp", "cwnd_segments", flow="nix")
    with pytest.raises(KeyError, match="no axis and no column nix"):
        longfat.timeline(sweep, "tcp", "cwnd_segments", nix="nix")
    assert longfat.timeline(sweep, "tcp", "cwnd_segments", repeat=1.0).lines
