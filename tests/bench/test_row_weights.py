"""Tables say how the clients of each row are weighted, wherever the grid names `weighting`."""

from __future__ import annotations

import csv
import io

import pytest

from unseen.bench.bench_files import markdown_file
from unseen.bench.bench_summary import summarize_bench
from unseen.bench.papers.readiness import SAMPLES
from unseen.bench.papers.recipe import list_recipes, load_recipe
from unseen.bench.row_weights import row_weights, with_named_weights
from unseen.bench.study import studies
from unseen.bench.tables.render import FIELDS, to_csv
from unseen.cli.bench_command import grid_from
from unseen.errors import UsageError

COMMON = {"data": "rotated-digits", "rounds": 6}
UNIFORM = {"method": "fedavg", "weighting": "uniform"}


@pytest.fixture
def named(grid_of):
    return grid_of(methods={"fedavg": {}, "fedavg, uniform": UNIFORM, "csac": {}, "deepall": {}})


def test_each_row_names_its_weights(named):
    assert row_weights(named.common, named.methods) == {
        "fedavg": "samples",
        "fedavg, uniform": "uniform",
        "csac": "uniform, then by divergence",
        "deepall": "none",
    }


def test_tables_have_a_column_and_comparisons_say_what_differs(named, results_of):
    summary = summarize_bench(named, results_of(named))
    text = markdown_file(summary)
    assert "| method | weights |" in text and "| FedAvg, uniform | uniform |" in text
    assert "rows with different ones differ in more than the method" in text
    said = {words.split()[0]: words for words in summary.sentences}
    assert all("(weights of clients: " in words and ", against samples)" in words for words in said.values())
    lines = list(csv.DictReader(io.StringIO(to_csv(summary.models[0].tables))))
    assert {line["method"]: line["weights"] for line in lines} == row_weights(named.common, named.methods)


def test_a_grid_that_does_not_name_them_keeps_its_tables(grid_of, results_of):
    grid = grid_of()
    assert studies(grid, results_of(grid))[0].weights == {}
    summary = summarize_bench(grid, results_of(grid))
    assert "weights" not in markdown_file(summary)
    assert to_csv(summary.models[0].tables).splitlines()[0].split(",") == list(FIELDS)


def test_a_common_weighting_passes_over_rows_that_average_no_clients(grid_of):
    methods = {"ppdg": {}, "deepall": {}, "cwt": {}}
    grid = grid_of(common={**COMMON, "weighting": "samples"}, methods=methods, baseline=None)
    assert grid.job("ppdg", "0", 0).config.weighting == "samples"
    assert grid.job("deepall", "0", 0).config.weighting == "method"
    assert row_weights(grid.common, grid.methods) == {"ppdg": "samples", "deepall": "none", "cwt": "none"}
    with pytest.raises(UsageError, match="cannot act on cwt"):
        grid_of(methods={"cwt": {"weighting": "samples"}}, baseline=None).job("cwt", "0", 0)


def test_the_option_and_the_setting_that_says_the_same_are_one_job(grid_of):
    spelled = {"option": UNIFORM, "setting": {"method": "fedavg", "settings": {"weighting": "uniform"}}}
    grid = grid_of(methods={**spelled, "plain": {"method": "fedavg"}}, baseline=None)
    option, setting, plain = (grid.job(label, "0", 0).id for label in grid.methods)
    assert option == setting != plain
    named = grid_of(common={**COMMON, "weighting": "method"})
    assert named.job("fedavg", "0", 0).id == grid_of().job("fedavg", "0", 0).id


def test_a_grid_made_from_options_names_weights_that_differ(tmp_path):
    differ = grid_from("rotated-digits", tmp_path, {"methods": "fedavg,ppdg"})
    assert differ.common["weighting"] == "method"
    alike = grid_from("rotated-digits", tmp_path, {"methods": "fedavg,fedprox"})
    assert "weighting" not in alike.common
    assert with_named_weights({"weighting": "uniform"}, {"fedavg": {}, "ppdg": {}})["weighting"] == "uniform"


COMPARING = [name for name in list_recipes() if not load_recipe(name).figure.startswith("run:")]


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("budget", ["paper", "small"])
def test_recipes_on_unequal_domains_have_fedavg_in_both_forms(name, budget):
    recipe = load_recipe(name)
    grid = recipe.grid(budget)
    averages = {
        label: weights
        for label, weights in row_weights(grid.common, grid.methods).items()
        if grid.methods[label].get("method", label) == "fedavg"
    }
    if len(set(SAMPLES[recipe.data].values())) > 1 or recipe.data in ("povertymap", "fmow"):
        assert {"samples", "uniform"} <= set(averages.values())
