"""Every recipe can be resolved at every budget, names only what exists, and says what it lacks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from unseen.bench.bench_figures import BENCH_FIGURES
from unseen.bench.bench_job import RELEASED
from unseen.bench.grid import jobs
from unseen.bench.papers.published_tables import load_published
from unseen.bench.papers.readiness import (
    NO_WEIGHTS,
    SAMPLES,
    Readiness,
    check_readiness,
    planned_samples,
    pretrained,
    with_weights,
    without_domains,
)
from unseen.bench.papers.recipe import BUDGETS, apply_budget, list_recipes, load_recipe
from unseen.data import list_sources
from unseen.errors import UnseenError, UsageError
from unseen.models import list_models
from unseen.models.model_names import plain_name
from unseen.report.figures import FIGURES
from unseen.runner.prepare import check_names

RECIPES = list_recipes()
EXPERIMENTS = {
    "csac": {"table": range(1, 7), "figure": range(4, 10)},
    "csac-2021": {"table": range(1, 7)},
    "ppdg": {"table": range(1, 8), "figure": [1]},
    "fedadg": {"table": range(4, 9), "figure": range(3, 6)},
    "mdfl": {"table": range(2, 5), "figure": [2, 5, 6]},
}
"""All tables and figures of the papers that report an experiment."""
SOURCES = dict(list_sources())


def parts_of(name: str) -> tuple[str, str]:
    """The paper and the table or figure that a recipe's name begins with."""
    found = re.match(r"(.+?)-((?:table|figure)\d+)", name)
    assert found is not None, name
    return found[1], found[2]


def test_every_experiment_of_the_papers_has_a_recipe():
    wanted = {
        f"{paper}-{kind}{number}"
        for paper, kinds in EXPERIMENTS.items()
        for kind, numbers in kinds.items()
        for number in numbers
    }
    assert {"-".join(parts_of(name)) for name in RECIPES} == wanted


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_it_shows(name):
    recipe = load_recipe(name)
    paper, shown = parts_of(name)
    assert recipe.paper.key == paper
    kind, number = recipe.shows.split()
    roman = {"IV": "4", "V": "5", "VI": "6", "VII": "7", "VIII": "8"}
    assert f"{kind.lower()}{roman.get(number, number)}" == shown
    assert bool(recipe.figure) == (kind == "Figure")
    if recipe.figure:
        page, figure = recipe.figure.split(":")
        assert figure in {"bench": BENCH_FIGURES, "run": FIGURES}[page]
    assert recipe.about and recipe.setting["title"] and recipe.setting["note"]
    assert set(recipe.budgets) == {"smoke", "small"}


@pytest.mark.parametrize("name", [name for name in RECIPES if "-table" in name])
def test_a_table_has_its_published_numbers(name):
    recipe = load_recipe(name)
    table = load_published(recipe.setting["published"])
    assert table.paper == recipe.paper and table.table == recipe.shows
    grid = recipe.grid("paper")
    if table.metric in ("accuracy", "in-domain accuracy", "hours") and table.columns[0] in grid.hold_out:
        assert table.columns == grid.hold_out and table.data == recipe.data
    if grid.hold_out == (RELEASED,) and table.metric != "p":
        assert RELEASED in table.columns and table.selection == grid.job("ppdg", RELEASED, 0).config.selection
    printed = {row.model or table.model for row in table.rows.values()} - {None}
    assert not printed or printed & {job.config.model for job in jobs(grid)}
    ours = {options["method"] for options in grid.methods.values()}
    assert {row.method for row in table.rows.values() if row.method} <= ours


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_resolves_to_valid_runs(name, budget):
    recipe = load_recipe(name)
    grid = recipe.grid(budget)
    models = {summary.name for summary in list_models()}
    domains = SOURCES[recipe.data].domains.split(", ")
    found = jobs(grid)
    assert len({job.id for job in found}) == len(found) > 0
    for job in found:
        check_names(job.config)
        assert plain_name(job.config.model) in models
        if job.held_out == RELEASED:
            assert job.config.hold_out == tuple(sorted(SOURCES[recipe.data].hold_out))
            assert job.config.validate_on == SOURCES[recipe.data].validate_on != ()
        else:
            assert job.held_out in domains and set(job.config.sources) <= set(domains)
        assert planned_samples(grid, job.label, job.held_out) > 0


@pytest.mark.parametrize("name", RECIPES)
def test_budgets_grow(name):
    recipe = load_recipe(name)
    work = {}
    for budget in BUDGETS:
        grid = recipe.grid(budget)
        work[budget] = sum(planned_samples(grid, job.label, job.held_out) for job in jobs(grid))
    assert work["smoke"] < work["small"] < work["paper"]
    assert work["smoke"] < 60_000
    smoke = recipe.grid("smoke")
    assert len(smoke.hold_out) == 1 and not pretrained(smoke)


def test_what_the_paper_did_is_what_the_file_says():
    recipe = load_recipe("csac-table3")
    paper, small = recipe.grid("paper"), recipe.grid("small")
    assert (paper.common["rounds"], paper.seeds) == (41, (0, 1, 2, 3, 4))
    assert "not the paper's" not in paper.note and "Budget 'small', not the paper's" in small.note
    assert paper.job("csac", "0", 0).config.settings["acquisition_epochs"] == 30
    assert small.job("csac", "0", 0).config.settings["acquisition_epochs"] == 10
    assert small.common["rounds"] == 8 and small.hold_out == paper.hold_out


@pytest.mark.parametrize(
    "name", [name for name in RECIPES if name.startswith("csac") and "figure7" not in name]
)
def test_every_comparison_with_csac_has_fedavg_with_the_same_epochs(name):
    """CSAC's first round is 30 epochs that plain FedAvg lacks: the control has them, and averages plainly."""
    grid = load_recipe(name).grid("paper")
    jobs_by_label = {label: grid.job(label, grid.hold_out[0], 0).config for label in grid.methods}
    compared = [label for label, config in jobs_by_label.items() if config.method != "csac"]
    controls = [label for label in jobs_by_label if label.startswith("fedavg with acquisition")]
    assert controls or not compared
    for label in controls:
        settings = jobs_by_label[label].settings
        assert (settings["strategy"], settings["alignment"]) == ("average", "none")
        assert (settings["acquisition_epochs"], settings["acquisition_batches_per_epoch"]) == (30, 60)


def test_a_budget_reaches_every_label():
    setting = {
        "hold_out": ["a"],
        "baseline": "one",
        "common": {"data": "x", "rounds": 9, "image_size": 64},
        "methods": {"one": {"method": "csac", "image_size": 224}, "fedavg": {}, "deepall": {}},
    }
    budget = {
        "image_size": 32,
        "methods": ["one", "deepall"],
        "settings": {"csac": {"acquisition_epochs": 2}},
    }
    grid = apply_budget(setting, {**budget, "options": {"deepall": {"batch_size": 7}}})
    assert list(grid.methods) == ["one", "deepall"] and grid.common["image_size"] == 32
    one, pooled = grid.job("one", "a", 0).config, grid.job("deepall", "a", 0).config
    assert (one.image_size, one.settings["acquisition_epochs"], one.batch_size) == (32, 2, 32)
    assert (pooled.image_size, pooled.batch_size) == (32, 7)
    assert apply_budget(setting, {"methods": ["fedavg"]}).baseline is None
    for wrong in ({"round": 1}, {"methods": ["two"]}, {"options": {"two": {}}}, {"settings": {"csac": 3}}):
        with pytest.raises(UsageError):
            apply_budget(setting, wrong)


def test_unknown_names_are_refused_with_what_was_meant():
    with pytest.raises(UsageError, match="Did you mean 'csac-table3'"):
        load_recipe("csac-tabel3")
    with pytest.raises(UsageError, match="csac-table4 has 2 parts, name one of them: csac-table4-pacs"):
        load_recipe("csac-table4")
    with pytest.raises(UsageError, match="unknown budget 'tiny'"):
        load_recipe("csac-table3").grid("tiny")


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_what_is_missing_is_told(tmp_path):
    grid = load_recipe("fedadg-table5-alexnet").grid("small")
    assert "put the PACS release" in check_readiness(grid, None).data
    assert f"below {tmp_path}" in check_readiness(grid, tmp_path).data
    for domain in grid.hold_out:
        (tmp_path / "pacs" / domain).mkdir(parents=True)
    found = check_readiness(grid, tmp_path)
    assert found.data == "" and found.weights == ("alexnet",) and not found.runnable
    _touch(tmp_path / "weights" / "alexnet.pth")
    assert check_readiness(grid, tmp_path).runnable


def test_domains_without_files_are_left_out(tmp_path):
    grid = load_recipe("mdfl-table2").grid("paper")
    for name in ("mnist", "usps"):
        _touch(tmp_path / "digits" / f"{name}.npz")
    found = check_readiness(grid, tmp_path)
    assert found.data == "" and found.domains == ("mnistm", "svhn")
    rest = without_domains(grid, found.domains)
    assert rest.hold_out == ("mnist", "usps") and rest.common["sources"] == ["mnist", "usps"]
    assert "Left out because files are missing: mnistm, svhn" in rest.note


def test_a_release_with_its_own_split_is_ready_when_it_is_there(tmp_path):
    grid = load_recipe("ppdg-table1").grid("small")
    assert "camelyon17_v1.0" in check_readiness(grid, tmp_path).data
    _touch(tmp_path / "camelyon17_v1.0" / "metadata.csv")
    assert check_readiness(grid, tmp_path) == Readiness()


def test_pretrained_weights_are_found_or_asked_for(tmp_path):
    grid = load_recipe("mdfl-table2").grid("paper")
    with pytest.raises(UnseenError, match=r"put weights/resnet18_imagenet\.safetensors below the data root"):
        with_weights(grid, tmp_path)
    fresh = with_weights(grid, tmp_path, from_scratch=True)
    assert all(job.config.weights is None for job in jobs(fresh))
    file = tmp_path / "weights" / "resnet18_imagenet_features.safetensors"
    _touch(file)
    used = {job.label: job.config.weights for job in jobs(with_weights(grid, tmp_path))}
    assert used["resnet18"] == str(file) and used["customnet"] is None
    smoke = load_recipe("csac-table1").grid("smoke")
    assert smoke.common["weights"] == NO_WEIGHTS
    assert all(job.config.weights is None for job in jobs(with_weights(smoke, None)))


def test_estimates_count_what_clients_train_on():
    grid = load_recipe("csac-table3").grid("paper")
    assert (
        planned_samples(grid, "fedavg", "0") == planned_samples(grid, "deepall", "0") == 41 * 5 * 20 * 64 * 5
    )
    assert planned_samples(grid, "csac", "0") == (30 * 60 + 40 * 5 * 20) * 64 * 5
    passes = replace(grid, common={**grid.common, "batches_per_epoch": None})
    assert planned_samples(passes, "fedavg", "0") == 41 * 5 * 5 * 900
    few = load_recipe("csac-figure5").grid("small")
    assert planned_samples(few, "fedavg, 2 sources", "RealWorld") == 5 * 1 * 10 * 32 * 2
    digits = load_recipe("mdfl-table2").grid("small")
    assert planned_samples(digits, "lenet-1", "usps") == 5 * 9 * 5 * 64
    half = load_recipe("ppdg-table2").grid("paper")
    assert planned_samples(half, "fedavg", RELEASED) * 2 == planned_samples(half, "deepall", RELEASED)
    assert set(SAMPLES) >= {load_recipe(name).data for name in RECIPES}
