"""Grids and jobs: what is the same has the same name, what is wrong is refused at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unseen.bench.bench_job import job_config
from unseen.bench.grid import Grid, jobs
from unseen.bench.job_plan import make_plan
from unseen.bench.result_store import ResultStore
from unseen.errors import UnseenError, UsageError

TEXT = """
title = "Digits"
hold_out = ["0", "75"]
seeds = [0, 1]
baseline = "fedavg"

[common]
data = "rotated-digits"
rounds = 3

[methods]
fedavg = {}
near = { method = "fedprox", settings = { mu = 0.5 } }
"""


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "grid.toml").write_text(TEXT)
    return Grid.from_toml(tmp_path / "grid.toml")


def test_a_grid_survives_its_file(grid, tmp_path):
    whole = replace(
        grid.on(("0", "15", "75")),
        models=("mnist-cnn",),
        search=3,
        selection="lodo",
        note="two\nlines",
        seeds_at={"75": (1,)},
    )
    whole.save(tmp_path / "again.toml")
    assert Grid.from_toml(tmp_path / "again.toml") == whole


def test_jobs_come_seed_by_seed(grid):
    cells = [(job.seed, job.held_out, job.label) for job in jobs(grid)]
    assert [seed for seed, *_ in cells] == [0] * 4 + [1] * 4
    assert cells[:4] == [(0, "0", "fedavg"), (0, "0", "near"), (0, "75", "fedavg"), (0, "75", "near")]
    assert [job.config.method for job in jobs(grid)[:2]] == ["fedavg", "fedprox"]
    assert jobs(grid)[1].config.settings["mu"] == 0.5


def test_a_held_out_domain_can_have_fewer_seeds(grid, tmp_path):
    path = tmp_path / "fewer.toml"
    path.write_text(TEXT.replace("seeds = [0, 1]", 'seeds = [0, 1]\nseeds_at = { "75" = 1 }'))
    fewer = Grid.from_toml(path)
    assert [(job.seed, job.held_out) for job in jobs(fewer)[::2]] == [(0, "0"), (1, "0"), (1, "75")]
    assert {job.id for job in jobs(fewer)} < {job.id for job in jobs(grid)}
    assert make_plan(fewer, ResultStore(tmp_path)).jobs == jobs(fewer)
    searched = make_plan(replace(fewer, search=2), ResultStore(tmp_path))
    assert {(job.seed, job.held_out) for job in searched.trials} == {(0, "0"), (1, "75")}


def test_one_method_can_be_compared_with_itself(grid):
    options = {"little noise": {"lr": 0.1}, "much": {"lr": 0.2}, "near": {"method": "fedprox"}}
    same = replace(grid, common={**grid.common, "method": "scaffold"}, methods=options, baseline=None)
    assert [job.config.method for job in jobs(same)[:3]] == ["scaffold", "scaffold", "fedprox"]


def test_models_multiply(grid):
    both = replace(grid, models=("mnist-cnn", "mlp"))
    assert len({job.id for job in jobs(both)}) == 2 * len(jobs(grid))


def same_id(grid: Grid, **changes: object) -> bool:
    plain = grid.job("fedavg", "75", 0)
    return plain.id == grid.job("fedavg", "75", 0, **changes).id


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"settings": {"weighting": "samples"}},
        {"momentum": 0.9},
        {"fraction": 1},
        {"threads": 2},
        {"data_root": "/elsewhere"},
        {"device": "cpu"},
        {"hold_out": ["75"]},
    ],
    ids=str,
)
def test_the_same_configuration_has_the_same_name(grid, changes):
    assert same_id(grid, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"weighting": "uniform"}},
        {"method": "fedprox"},
        {"hold_out": ["60", "75"]},
        {"rounds": 4},
        {"lr": 0.011},
        {"data": "rotated-mnist"},
        {"model": "mnist-cnn"},
        {"selection": "last"},
    ],
    ids=str,
)
def test_another_configuration_has_another_name(grid, changes):
    assert not same_id(grid, **changes)


def test_seeds_and_domains_have_names_of_their_own(grid):
    assert len({job.id for job in jobs(grid)}) == 8


def test_names_stay_the_same_between_versions(grid):
    """Finished jobs are found by these names: a change of them repeats everybody's benches."""
    assert [job.id for job in jobs(grid)[:2]] == ["ba0b4a676fc0", "8f13221ed567"]


def test_settings_as_text_are_the_same_as_numbers():
    first = job_config({"data": "x", "hold_out": "a", "method": "fedprox", "settings": {"mu": "0.5"}})
    assert first == job_config(
        {"data": "x", "hold_out": ("a",), "method": "fedprox", "settings": {"mu": 0.5}}
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("fedavg = {}", "fedag = {}", "'fedavg'"),
        ("mu = 0.5", "mue = 0.5", "'mu'"),
        ("rounds = 3", "round = 3", "'rounds'"),
        ("rounds = 3", "seed = 3", "the grid itself sets seed"),
        ("rounds = 3", "workers = 3", "the grid itself sets workers"),
        ('baseline = "fedavg"', 'baseline = "fedav"', "'fedavg'"),
        ('baseline = "fedavg"', 'selection = "loo"', "'lodo'"),
        ('baseline = "fedavg"', "search = -1", "0 or more"),
        ("seeds = [0, 1]", "seeds = []", "seeds"),
        ("seeds = [0, 1]", "seeds = [1, 1]", "twice"),
        ("seeds = [0, 1]", 'seeds = ["x"]', "whole numbers"),
        ("seeds = [0, 1]", 'seeds = [0, 1]\nseeds_at = { "0" = [2] }', "'0' without any run"),
        ('data = "rotated-digits"', "", "needs data"),
        ('hold_out = ["0", "75"]', "", "held-out"),
        ("fedavg = {}", "fedavg = 3", "table"),
        ("fedavg = {}", 'fedavg = { data = "pacs" }', "share its data"),
    ],
)
def test_wrong_grids_are_refused(tmp_path, old, new, words):
    assert old in TEXT
    path = tmp_path / "grid.toml"
    path.write_text(TEXT.replace(old, new))
    with pytest.raises(UsageError, match=words):
        jobs(Grid.from_toml(path))


def test_unreadable_grids(tmp_path):
    (tmp_path / "grid.toml").write_text("title = ")
    with pytest.raises(UnseenError, match="not a TOML file"):
        Grid.from_toml(tmp_path / "grid.toml")
    with pytest.raises(UnseenError, match="cannot read"):
        Grid.from_toml(tmp_path / "nothing.toml")


def test_all_domains(grid):
    assert replace(grid, hold_out=("all",)).on(("a", "b")).hold_out == ("a", "b")
    with pytest.raises(UsageError, match="'0'"):
        grid.on(("a", "b"))


def test_seeds_of_an_unknown_domain_are_refused(grid):
    with pytest.raises(UsageError, match="'75'"):
        replace(grid, seeds_at={"76": (0,)}).on(("0", "75"))


def test_jobs_from_before_splits_by_group_keep_their_names():
    def name(**common: object) -> str:
        grid = Grid.from_mapping(
            {"common": {"data": "rotated-mnist", **common}, "methods": {"fedavg": {}}, "hold_out": ["75"]}
        )
        return jobs(grid)[0].id

    assert name(split="sample") == "3570f07bf813"
    assert name() == name(split="group") != name(split="sample")
    usual = name(data_settings={"direction": "clockwise", "interpolation": "bilinear"})
    assert usual == name() != name(data_settings={"direction": "counter-clockwise"})
