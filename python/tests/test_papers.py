"""The papers' page: what it shows exists, and is what the results say."""

import argparse
import importlib.machinery
import importlib.util
import json
import subprocess
import tomllib

import pytest

from conftest import ROOT

GALLERY = tomllib.loads((ROOT / "docs/measurements/papers.toml").read_text())


def load():
    loader = importlib.machinery.SourceFileLoader("papers", str(ROOT / "scripts/papers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("papers", loader))
    loader.exec_module(module)
    return module


papers = load()


@pytest.mark.parametrize("name", {**papers.experiments(GALLERY, "sim"), **papers.experiments(GALLERY, "emulated")})
def test_every_figure_that_is_shown_is_of_a_cell_that_its_experiment_has(program, name):
    spec = ROOT / f"experiments/{name}.toml"
    if not spec.is_file():
        # Then the page must say so, not show a table without figures.
        page = (ROOT / "docs/measurements/papers.md").read_text()
        assert f"*No experiment yet:* `experiments/{name}.toml`" in page
        return
    listed = subprocess.run([program, "lab", "list", str(spec), "--json"], check=True, capture_output=True, text=True)
    runs = [{"axes": plan.get("axes"), "case": plan["case"]} for plan in json.loads(listed.stdout)]
    shown = [exhibit for _, exhibit in papers.exhibits(GALLERY) if exhibit.get("experiment") == name]
    for figure in (figure for exhibit in shown for figure in papers.figures_of(exhibit)):
        assert any(papers.Result._is_at(run, figure) for run in runs), figure
        assert figure.get("unit", "") in papers.UNITS


def result(directory, values, status="done", reasons=()):
    for repeat, value in enumerate(values, 1):
        metric = {"metric": "goodput_bps", "of": "f", "value": value}
        manifest = {"case": "c", "status": status, "reasons": list(reasons), "metrics": [metric, {**metric, "stream": 0, "value": 7}]}
        (directory / f"r{repeat}").mkdir(parents=True)
        (directory / f"r{repeat}/manifest.json").write_text(json.dumps(manifest))
    runs = [{"path": f"r{repeat}"} for repeat in range(1, len(values) + 1)]
    judged = [{"text": "it is fast", "met": False, "detail": "it is not"}]
    (directory / "result.json").write_text(json.dumps({"runs": runs, "expectations": judged}))


ROW = {"name": "a flow", "case": "c", "metric": "goodput_bps", "of": "f", "paper": 20.0}


def test_medians_over_valid_runs_stand_beside_the_papers_figure(tmp_path):
    result(tmp_path, [10e6, 40e6, 30e6])
    came_to = papers.Result(tmp_path)
    assert papers.row_line(came_to, ROW, "Mbit/s", "sim") == "| a flow | 20.0 Mbit/s | 30.0 [10.0 – 40.0] Mbit/s | 1.50 |"
    over = {**ROW, "over": {"of": "f"}, "paper": "as much"}
    assert papers.row_line(came_to, over, "Mbit/s", "sim") == "| a flow | as much | 1.00 | – |"
    assert papers.row_line(came_to, {**ROW, "paper": "16 to 40"}, "Mbit/s", "sim").startswith("| a flow | 16 to 40 Mbit/s |")
    assert papers.row_line(came_to, {**ROW, "paper": "full"}, "Mbit/s", "sim").startswith("| a flow | full |")
    assert "0 of 1 met" in came_to.verdict() and "it is fast (it is not)" in came_to.verdict()


def test_emulated_figures_stand_beside_their_twins_and_are_marked_where_they_differ(tmp_path):
    result(tmp_path, [10e6, 20e6, 30e6])
    for repeat, (twin, times) in enumerate([(19e6, 1), (20e6, 4), (40e6, 4)], 1):
        manifest = tmp_path / f"r{repeat}/manifest.json"
        twin = {"metrics": [{"metric": "goodput_bps", "of": "f", "value": twin}]}
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "twin": twin, "dilation": times}))
    came_to = papers.Result(tmp_path)
    assert papers.row_line(came_to, ROW, "Mbit/s", "emulated").endswith("| 20.0 [10.0 – 30.0] Mbit/s | 1.00 | 20.0 |")
    assert came_to.slowed() == ", 1 to 4 times slower"
    assert papers.table(came_to, {"unit": "Mbit/s", "row": [ROW]}, "emulated")[0] == "| | paper | ours | ours / paper | simulated |"


def with_twins(directory, ours, simulated, **ranges):
    """A run beside its twin, and what other twins came to, by cause."""
    result(directory, [ours])
    file = directory / "r1/manifest.json"
    causes = {cause: {"figures": [{"metric": "goodput_bps", "of": "f", "least": least, "greatest": greatest}]} for cause, (least, greatest) in ranges.items()}
    twin = {"metrics": [{"metric": "goodput_bps", "of": "f", "value": simulated}], **causes}
    file.write_text(json.dumps({**json.loads(file.read_text()), "twin": twin}))
    return papers.Result(directory)


def test_a_figure_that_is_far_from_its_twin_says_what_explains_it_or_that_nothing_does(tmp_path):
    shown = lambda name, ours, *twin, **ranges: papers.beside(with_twins(tmp_path / name, ours, *twin, **ranges), ROW, 1)
    assert shown("near", 22.0, 20.0) == "20.0" and shown("far", 22.1, 20.0) == "20.0 !" and shown("below", 17.9, 20.0) == "20.0 !"
    assert shown("chance", 49.6, 23.9, chance=(23.8, 52.1)) == "23.9 ~ 23.8 – 52.1 by chance"
    assert shown("held", 27.0, 67.0, chance=(66.0, 68.0), held_up=(24.0, 48.0)) == "67.0 ~ 24.0 – 48.0 by hold-ups"
    assert shown("neither", 12.0, 67.0, chance=(66.0, 68.0), held_up=(24.0, 48.0)) == "67.0 !"
    held = with_twins(tmp_path / "grid", 27.0, 67.0, held_up=(24.0, 48.0))
    assert papers.beside(held, ROW, 1, with_range=False) == "67.0 ~ by hold-ups"
    assert papers.beside(with_twins(tmp_path / "close", 22.1, 20.0), {**ROW, "resolution": 2.2}, 1) == "20.0"
    exhibit = {"unit": "", "resolution": 2.2, "row": [ROW]}
    assert papers.table(papers.Result(tmp_path / "close"), exhibit, "emulated")[-1].endswith("| 20.0 |")
    result(tmp_path / "none", [1.0])
    assert papers.beside(papers.Result(tmp_path / "none"), ROW, 1) == "–"


def test_a_run_that_nothing_explains_is_no_valid_one_and_shown_as_what_it_is(tmp_path):
    with_twins(tmp_path, 12.0, 67.0, chance=(66.0, 68.0))
    file = tmp_path / "r1/manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "status": "unexplained"}))
    came_to = papers.Result(tmp_path)
    assert papers.row_line(came_to, ROW, "", "emulated") == "| a flow | 20.0 | 12.0 ? | – | 67.0 |"
    assert came_to.count() == "0 valid of 1 run" and came_to.cells([ROW]) == 0


def test_a_ratio_is_explained_by_what_twins_of_either_side_came_to(tmp_path):
    came_to = with_twins(tmp_path, 30.0, 10.0, chance=(9.0, 31.0))
    other = {"case": "d", "status": "done", "reasons": [], "metrics": [{"metric": "goodput_bps", "of": "f", "value": 10.0}]}
    came_to.runs.append({**other, "twin": {"metrics": other["metrics"]}})
    ratio = {**ROW, "over": {"case": "d"}}
    assert papers.values_of(came_to, ratio) == [3.0]
    assert papers.beside(came_to, ratio, 1) == "1.00 ~ 0.900 – 3.10 by chance"


def test_how_much_slower_an_experiment_is_emulated_is_said_once(tmp_path):
    gallery = lambda *dilations: {"paper": [{"exhibit": [{"experiment": "x", **({"dilate": times} if times else {})} for times in dilations]}]}
    assert papers.dilation(gallery(None, None), "x") == "auto" and papers.dilation(gallery(None, 4), "x") == 4
    with pytest.raises(SystemExit, match="exhibits of x differ in dilate: 2, 4"):
        papers.dilation(gallery(4, 2), "x")
    asked = argparse.Namespace(backend="emulated", program="longfat", share=1)
    command = papers.command_of(gallery(None), "x", ["c"], asked, tmp_path)
    assert command[4:] == ["--case", "c", "--set", 'dilate="auto"', "--backend", "emulated", "-o", str(tmp_path / "x")]
    assert [papers.seconds(text) for text in ("90", "90s", "40min", "0.5h")] == [90, 90, 2400, 1800]


def test_runs_that_the_host_may_have_limited_are_counted(tmp_path):
    result(tmp_path / "quiet", [10e6, 20e6])
    assert papers.Result(tmp_path / "quiet").count() == "2 valid runs"
    result(tmp_path / "busy", [10e6], reasons=["warning: processors were 99.9 % busy; the figures may be this machine's limit"])
    assert papers.Result(tmp_path / "busy").count().startswith("1 valid run, 1 with the host's processors busy throughout")


def test_a_grid_without_the_papers_figures_shows_ours_alone(tmp_path):
    result(tmp_path, [10e6])
    grid = {"metric": "goodput_bps", "of": "f", "axes": ["case", "rate"], "labels": [["c"], ["1Mbit"]]}
    manifest = tmp_path / "r1/manifest.json"
    axes = [{"axis": "case", "label": "c"}, {"axis": "rate", "label": "1Mbit"}]
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "axes": axes}))
    shown = lambda more: papers.grid_table(papers.Result(tmp_path), {"unit": "Mbit/s", "grid": {**grid, **more}}, "sim")
    assert shown({})[0] == "| Mbit/s: ours | 1Mbit |" and shown({})[-1] == "| c | 10.0 |"
    assert shown({"paper": [[20.0]]})[-1] == "| c | 20.0 / **10.0** |"


def test_what_one_world_alone_can_run_is_left_out_of_the_other(tmp_path):
    result(tmp_path, [10e6])
    exhibit = {"unit": "Mbit/s", "row": [ROW, {**ROW, "name": "BBR", "backends": ["emulated"]}]}
    names = lambda backend: [line.split(" | ")[0] for line in papers.table(papers.Result(tmp_path), exhibit, backend)[2:]]
    assert names("sim") == ["| a flow"] and names("emulated") == ["| a flow", "| BBR"]
    gallery = {"paper": [{"cite": "A", "exhibit": [{"experiment": "x", "cases": {"sim": ["c"]}}]}, {"cite": "B", "exhibit": [{"experiment": "y"}]}]}
    assert papers.experiments(gallery, "sim") == {"x": ["c"], "y": []} and papers.experiments(gallery, "emulated") == {"x": [], "y": []}
    assert list(papers.experiments(papers.of_paper(gallery, "B"), "sim")) == ["y"]


@pytest.mark.parametrize(
    ("cases", "all_of_them"),
    [([["a", "b"], ["b", "c"]], ["a", "b", "c"]), ([["a"], None], []), ([None, ["a"]], []), ([["a"], None, ["b"]], []), ([["a"]], ["a"])],
)
def test_an_experiment_of_several_exhibits_runs_the_cases_of_them_all(cases, all_of_them):
    shown = [{"experiment": "x", **({"cases": {"sim": some}} if some else {})} for some in cases]
    assert papers.experiments({"paper": [{"cite": "A", "exhibit": shown}]}, "sim") == {"x": all_of_them}


def test_a_page_with_figures_is_of_the_experiments_that_were_asked_for(tmp_path):
    gallery = {"paper": [{"cite": "A", "exhibit": [{"experiment": "x"}, {"experiment": "y"}, {"experiment": "not-run"}]}]}
    for name in ("sim/x", "sim/y", "emulated/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "result.json").touch()
    places = {world: tmp_path / world for world in papers.WORLDS}
    of = lambda **asked: [name.removeprefix(f"{tmp_path}/") for name in papers.results_there(gallery, argparse.Namespace(**asked), places)]
    assert of(backend="emulated", only=None) == ["emulated/x", "sim/x", "sim/y"]
    assert of(backend="sim", only=["x", "not-run"]) == ["sim/x", "emulated/x"]


def test_an_experiment_of_another_paper_is_said_to_be_none_of_this_one():
    asked = [str(ROOT / "scripts/papers"), "--paper", "Tamatsukuri 2006", "--only", "conversion", "--page-only", "--report", "/dev/null"]
    said = subprocess.run(asked, capture_output=True, text=True)
    assert said.returncode == 2
    assert said.stderr.endswith("has no conversion, simulated of Tamatsukuri 2006; there are: rtt-sweep\n")


def test_one_page_is_made_of_the_results_that_a_paper_has_in_both_worlds(program, tmp_path):
    for world in ("one", "other"):
        spec = ["lab", "run", str(ROOT / "experiments/imtcp-estimators.toml"), "--backend", "sim", "--case", "slope"]
        assert subprocess.run([program, *spec, "-o", str(tmp_path / world / "imtcp-estimators")], capture_output=True).returncode in (0, 1)
    asked = argparse.Namespace(backend="sim", only=None, program=program, report=tmp_path / "page.html")
    papers.report(papers.of_paper(GALLERY, "Tsugawa 2006"), asked, {"sim": tmp_path / "one", "emulated": tmp_path / "other"})
    page = asked.report.read_text()
    assert "<h2>2 results</h2>" in page and page.count("Slope and Kalman filter") > 2
    with pytest.raises(SystemExit):
        papers.report(papers.of_paper(GALLERY, "Amagai 1995"), asked, {"sim": tmp_path, "emulated": tmp_path})


def test_what_is_missing_is_said(tmp_path):
    result(tmp_path, [10e6], status="invalid")
    assert "no valid run" in papers.row_line(papers.Result(tmp_path), ROW, "Mbit/s", "sim")
    section = lambda exhibit: "\n".join(papers.section(GALLERY, exhibit, "sim", tmp_path, set()))
    assert "*Not run,* simulated: 0 of 1 cells" in section({"title": "t", "experiment": "conversion", "row": [ROW]})
    elsewhere = {"title": "t", "experiment": "conversion", "backends": ["emulated"], "elsewhere": "it needs a kernel."}
    assert "*Not simulated:* it needs a kernel." in section(elsewhere)
    assert "*No experiment:* why" in section({"title": "t", "missing": "why"})
    assert papers.page(GALLERY, "sim", tmp_path) == papers.page(GALLERY, "sim", tmp_path)


def test_an_exhibit_shows_what_there_is_and_says_of_how_many_cells(tmp_path):
    result(tmp_path / "conversion", [10e6])
    manifest = tmp_path / "conversion/r1/manifest.json"
    made = {"started_unix_ms": 1795693965112, "provenance": {"cpu_count": 2}}
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **made}))
    rows = [ROW, {**ROW, "name": "the same, latency"}, {**ROW, "name": "another", "case": "d"}, {**ROW, "name": "simulated", "case": "e", "backends": ["sim"]}]
    exhibit = {"title": "t", "experiment": "conversion", "unit": "Mbit/s", "row": rows}
    gallery = {"paper": [{"cite": "A", "exhibit": [exhibit]}]}
    section = lambda: "\n".join(papers.section(gallery, exhibit, "emulated", tmp_path, set()))
    assert "| another | 20.0 Mbit/s | not run | – | – |" in section()
    assert "emulated: 1 of 2 cells, 1 valid run, 2026-11-26 on 2 processors.\n\nThe rest: `scripts/papers" in section()
    assert "are judged when all its cells are there" in section() and "0 of 1 met" not in section()
    other = {**json.loads(manifest.read_text()), "case": "d"}
    for status, said in (("invalid", "emulated: 1 of 2 cells, 1 valid of 2 runs, "), ("done", "emulated, 2 valid runs, ")):
        (tmp_path / "conversion/r2").mkdir(exist_ok=True)
        (tmp_path / "conversion/r2/manifest.json").write_text(json.dumps({**other, "status": status}))
        content = json.loads((tmp_path / "conversion/result.json").read_text())
        (tmp_path / "conversion/result.json").write_text(json.dumps({**content, "runs": [{"path": "r1"}, {"path": "r2"}]}))
        assert said in section() and "The rest:" not in section() and "0 of 1 met" in section()
        assert ("no valid run" in section()) == (status == "invalid")


def test_a_share_is_a_balanced_part_of_the_cells_that_are_shown(program, tmp_path):
    asked = lambda share: argparse.Namespace(backend="emulated", program=program, share=share)
    words = papers.command_of(GALLERY, "relay-latency-grid", [], asked(0.2), tmp_path)
    assert [words[at + 1] for at, word in enumerate(words) if word == "--case"] == ["alone", "fixed"]
    # Twenty cells of each of the two.
    assert words[words.index("--sample") + 1] == "8"
    assert "--sample" not in papers.command_of(GALLERY, "relay-latency-grid", [], asked(1), tmp_path)
    for text in ("0", "1.5", "some"):
        with pytest.raises(argparse.ArgumentTypeError, match="more than 0, at most 1"):
            papers.share(text)


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (0.9349, "0.935"), (9.96, "9.96"), (83.82, "83.8"), (965.2, "965"), (12345, "12345"), (1e-3, "0.00100")])
def test_numbers_have_three_digits(value, shown):
    assert papers.number(value) == shown


def test_what_runs_came_to_is_kept_and_gone_on_with_elsewhere(tmp_path):
    result(tmp_path / "x", [10e6])
    (tmp_path / "x/r1/plan.json").write_text("{}")
    (tmp_path / "x/r1/tcp.parquet").write_bytes(b"samples")
    result(tmp_path / "half", [10e6], status="failed")
    for name in ("x", "half"):
        papers.pack(tmp_path / name, tmp_path / f"kept/{name}.tar.xz")
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["x.tar.xz"]
    first = (tmp_path / "kept/x.tar.xz").read_bytes()
    papers.unpack(tmp_path / "kept/x.tar.xz", tmp_path / "elsewhere")
    assert sorted(file.name for file in (tmp_path / "elsewhere").rglob("*") if file.is_file()) == ["manifest.json", "plan.json", "result.json"]
    assert papers.Result(tmp_path / "elsewhere").count() == "1 valid run"
    papers.pack(tmp_path / "elsewhere", tmp_path / "kept/x.tar.xz")
    assert (tmp_path / "kept/x.tar.xz").read_bytes() == first


def test_runs_that_at_most_their_twin_speaks_against_are_kept():
    kept = [{"status": "done"}, {"status": "unexplained", "twin": {}}, {"status": "invalid", "twin": {}}]
    made_again = [{"status": "invalid"}, {"status": "failed"}]
    assert [papers.went_as_planned(run) for run in kept + made_again] == [True] * 3 + [False] * 2


def test_kept_runs_are_not_made_again(program, tmp_path):
    command = [ROOT / "scripts/papers", "--program", program, "--only", "relay-congest", "--keep", tmp_path / "kept", "--page", tmp_path / "page.md"]
    again = [subprocess.run([*command, "--results", tmp_path / name], capture_output=True, text=True, check=True) for name in ("here", "elsewhere")]
    assert "runs are there already" not in again[0].stderr
    assert "16 of 16 runs are there already" in again[1].stderr
    assert "`experiments/relay-congest.toml`, simulated, 16 valid runs" in (tmp_path / "page.md").read_text()
