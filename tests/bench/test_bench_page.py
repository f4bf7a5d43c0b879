"""The page, files and figures of a bench: made from the results alone, saying what is missing."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from browsing import check
from unseen.bench.bench_figures import BENCH_FIGURES, FigureContext, draw_bench, setting_sweeps, value_text
from unseen.bench.bench_files import write_bench_figures, write_outputs
from unseen.bench.bench_summary import summarize_bench
from unseen.bench.results import read_results, write_results
from unseen.bench.study import studies
from unseen.cli.main import app
from unseen.errors import UsageError

HONEST = "source-validation"
PPDG = {
    f"ppdg strength={strength:g}": {"method": "ppdg", "settings": {"strength": strength}}
    for strength in (0.01, 0.1, 0.2)
}
NASTY = ["<script>alert(1)</script>", 'it\'s "quoted" & [0].x', "Zürich 東京 %d {0}", "a|b\\c_$"]


@pytest.fixture
def varied(grid_of):
    return grid_of(methods={"fedavg": {}, **PPDG})


def shown_of(grid, results, **more):
    return FigureContext(grid, studies(grid, results)[0], HONEST, **more)


def rows_of(chart):
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_outputs_are_a_function_of_the_results(grid_of, results_of, tmp_path):
    grid, results = grid_of(), results_of(grid_of())
    first = write_outputs(tmp_path / "one", grid, results)
    write_results(tmp_path / "results.jsonl", results)
    again = write_outputs(tmp_path / "two" / "one", grid, read_results(tmp_path / "results.jsonl"))
    for name in ("page", "markdown", "latex", "csv"):
        assert getattr(first, name).read_text() == getattr(again, name).read_text(), name


def test_the_report_command_writes_a_bench_again(grid_of, results_of, tmp_path):
    made = write_outputs(tmp_path / "bench", grid_of(), results_of(grid_of()))
    grid_of().save(tmp_path / "bench" / "bench.toml")
    write_results(tmp_path / "bench" / "results.jsonl", results_of(grid_of()))
    before = made.page.read_text()
    made.page.unlink()
    done = CliRunner().invoke(
        app, ["report", str(tmp_path / "bench"), "--figures", str(tmp_path / "png"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert made.page.read_text() == before
    told = json.loads(done.stdout)
    assert told["pages"][0] == str(made.page)
    assert len(told["figures"]) == len(list((tmp_path / "png").glob("*.png"))) == 7


def test_what_the_caller_is_told(grid_of, results_of, tmp_path):
    made = write_outputs(tmp_path, grid_of(), results_of(grid_of()), latex=tmp_path / "x" / "mine.tex")
    assert made.latex == tmp_path / "x" / "mine.tex"
    assert made.latex.is_file()
    assert [sheet.title for sheet in made.sheets] == [
        "Held-out accuracy in %, by source validation",
        "Mean held-out accuracy in %, by every selection rule",
        "Against FedAvg, by source validation",
    ]
    assert made.sentences[0].startswith("CSAC beats FedAvg by ")
    means = {(each["method"], each["selection"]): each["mean"] for each in made.values["means"]}
    assert means["csac", "oracle"] == pytest.approx(means["csac", HONEST] + 0.01)
    assert made.values["baseline"] == "fedavg"


def test_an_unknown_baseline_is_refused(grid_of, results_of, tmp_path):
    with pytest.raises(UsageError, match=r"unknown baseline 'fedagv'.*fedavg"):
        write_outputs(tmp_path, grid_of(), results_of(grid_of()), baseline="fedagv")


@pytest.mark.parametrize(
    ("methods", "given", "chosen"),
    [
        (("csac", "fedavg"), None, "fedavg"),
        (("csac", "ppdg"), None, "csac"),
        (("csac", "fedavg"), "csac", "csac"),
        (("csac",), None, None),
    ],
)
def test_which_baseline(grid_of, methods, given, chosen):
    grid = grid_of(methods={label: {} for label in methods}, baseline=None)
    assert summarize_bench(grid, [], baseline=given).baseline == chosen


def test_the_page_says_what_was_found(grid_of, results_of, tmp_path):
    page = write_outputs(tmp_path, grid_of(note="One.\n\nTwo."), results_of(grid_of())).page.read_text()
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.S)
    for words in (
        "CSAC beats FedAvg by",
        "<p>One.</p><p>Two.</p>",
        "Expected on a new site",
        "as if it had been drawn at random",
        "Method against method",
        "unseen bench grid.toml",
        "\\begin{tabular}",
        "36",
    ):
        assert words in text, words
    assert "Unfinished" not in text


def test_a_bench_under_way_says_so(grid_of, results_of, tmp_path):
    page = write_outputs(tmp_path, grid_of(), results_of(grid_of())[:-5]).page.read_text()
    assert "31 of 36 runs are finished" in page


def test_runs_link_to_their_reports(grid_of, results_of, tmp_path):
    report = tmp_path / "jobs" / "csac-15-1" / "report.html"
    report.parent.mkdir(parents=True)
    report.write_text("")
    page = write_outputs(tmp_path, grid_of(), results_of(grid_of())).page.read_text()
    assert page.count('href="jobs/') == 1
    assert '<a href="jobs/csac-15-1/report.html">CSAC</a>' in page


def test_headlines(grid_of, results_of):
    grid = grid_of()
    worse = results_of(grid, levels={"fedavg": 0.9, "csac": 0.8, "deepall": 0.7})
    assert summarize_bench(grid, worse).headline.startswith("FedAvg, the baseline, has the highest mean: 8")
    assert summarize_bench(grid, []).headline == "3 methods on 4 held-out domains"


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_bench_that_hardly_began_has_a_page(grid_of, results_of, tmp_path, kept):
    made = write_outputs(tmp_path, grid_of(), results_of(grid_of())[:kept])
    assert f"{kept} of 36 runs are finished" in made.page.read_text()


def test_which_figures_a_bench_has(grid_of, varied, results_of):
    plain = draw_bench(shown_of(grid_of(), results_of(grid_of())))
    assert list(plain) == ["domains", "expected", "curves", "matrix"]
    assert list(plain["curves"]) == [f"‘{domain}’ held out" for domain in ("0", "15", "30", "45")]
    assert "sensitivity" in draw_bench(shown_of(varied, results_of(varied), baseline="fedavg"))
    assert draw_bench(shown_of(grid_of(), [])) == {}
    assert set(plain) <= set(BENCH_FIGURES)


def test_bands_are_the_standard_error_over_seeds(grid_of, result_of):
    grid = grid_of(methods={"csac": {}}, hold_out=("a",), seeds=(0, 1), baseline=None)
    curves = ([0.5, 0.6, 0.8], [0.7, 0.6, math.nan])
    results = [result_of("csac", "a", seed, 0.8, curve=curve) for seed, curve in enumerate(curves)]
    rows = rows_of(draw_bench(shown_of(grid, results))["curves"]["‘a’ held out"])
    assert [(row["round"], row["value"]) for row in rows] == [(1, pytest.approx(0.6)), (2, 0.6), (3, 0.8)]
    assert rows[0]["low"] == pytest.approx(0.5)
    assert rows[1]["low"] == pytest.approx(0.6)
    assert "low" not in rows[2]


def test_curves_know_which_rounds_were_evaluated(grid_of, results_of):
    grid = grid_of(common={"data": "rotated-digits", "rounds": 11, "evaluate_every": 2})
    panel = draw_bench(shown_of(grid, results_of(grid)))["curves"]["‘0’ held out"]
    rounds = {row["round"] for row in rows_of(panel)}
    assert rounds == {2, 4, 6, 8, 10, 11}


def test_labels_that_differ_in_one_setting_are_found(varied):
    (found,) = setting_sweeps(varied)
    assert found.setting == "strength"
    assert list(found.values.values()) == [0.01, 0.1, 0.2]
    assert found.method == "ppdg strength"


def test_a_default_counts_as_a_value(grid_of):
    grid = grid_of(
        methods={"csac": {}, "csac l1": {"method": "csac", "settings": {"metric": "l1"}}}, baseline=None
    )
    (found,) = setting_sweeps(grid)
    assert (found.setting, set(found.values.values())) == ("metric", {"l2", "l1"})


def test_labels_that_differ_in_two_settings_are_not_compared(grid_of):
    methods = {
        "a": {"method": "ppdg", "settings": {"strength": 0.1}},
        "b": {"method": "ppdg", "settings": {"strength": 0.2}, "lr": 0.5},
    }
    assert setting_sweeps(grid_of(methods=methods, baseline=None)) == []


def test_values_on_an_axis():
    assert [value_text("x", value) for value in (0.10, 3, True, "l2")] == ["0.1", "3", "on", "l2"]
    assert [value_text("sources", value) for value in (("a", "b"), ())] == ["2", "all"]


def test_accuracy_against_the_number_of_source_domains(grid_of, results_of):
    methods = {
        f"{name} {words}": {"method": name, **({"sources": sources} if sources else {})}
        for name in ("csac", "fedavg")
        for words, sources in (("all", []), ("3", ["a", "b", "c"]), ("2", ["a", "b"]))
    }
    grid = grid_of(methods=methods, hold_out=("x", "y"), baseline=None)
    drawn = draw_bench(shown_of(grid, results_of(grid)))
    assert "sensitivity" not in drawn
    rows = rows_of(drawn["sources"]["number of source domains"])
    assert [(row["series"], row["at"]) for row in rows] == [
        (name, at) for name in ("CSAC", "FedAvg") for at in ("2", "3", "all")
    ]


def test_the_sensitivity_figure_shows_the_means_and_the_baseline(varied, results_of):
    results = results_of(varied, levels=dict(zip(varied.methods, (0.8, 0.7, 0.9, 0.6), strict=True)))
    chart = draw_bench(shown_of(varied, results, baseline="fedavg"))["sensitivity"]["strength"]
    rows = [row for row in rows_of(chart) if "at" in row]
    assert [row["at"] for row in rows] == ["0.01", "0.1", "0.2"]
    assert [round(row["value"], 1) for row in rows] == [0.7, 0.9, 0.6]
    assert [row["text"] for row in rows_of(chart) if "text" in row] == ["FedAvg"]


def test_pictures_of_all_figures(varied, results_of, tmp_path):
    for path in write_bench_figures(varied, results_of(varied), tmp_path):
        pixels = np.asarray(Image.open(path).convert("L"))
        assert (pixels < 200).mean() > 0.0005, f"{path} is blank"
    assert len(list(tmp_path.glob("*.png"))) == 8


@pytest.mark.browser
def test_the_page_is_right_on_a_phone_and_on_a_desk(browser, varied, results_of, tmp_path):
    results = [dataclasses.replace(r, worst_group=r.accuracy["last"]) for r in results_of(varied)[:-2]]
    page = write_outputs(tmp_path, varied, results).page
    check(browser, page, width=390, scheme="light")
    check(browser, page, width=1280, scheme="dark")


@pytest.mark.browser
def test_nasty_names_are_text(browser, grid_of, results_of, tmp_path):
    grid = grid_of(
        hold_out=tuple(NASTY), methods={name: {"method": "fedavg"} for name in NASTY}, baseline=None,
        title=NASTY[0], note=NASTY[1], models=(NASTY[2], "lenet"), seeds=(0,),
    )  # fmt: skip
    page = write_outputs(tmp_path, grid, results_of(grid)).page
    check(browser, page, width=390, scheme="dark")
    assert browser.title == NASTY[0]
