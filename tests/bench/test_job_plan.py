"""Which jobs a bench needs, and what leave-one-domain-out and search choose: on records made by hand."""

from __future__ import annotations

import json

import pytest

from unseen.bench.bench_summary import summarize_bench
from unseen.bench.job_plan import make_plan
from unseen.bench.lodo_cv import choose_round, folds
from unseen.bench.result_store import ResultStore
from unseen.bench.results import collect_results
from unseen.bench.search import choose_trial, trial_job, trial_options
from unseen.bench.tables.result_sheets import rules_sheet
from unseen.errors import UsageError
from unseen.evaluation.selection import SELECTION_RULES, SelectionRule
from unseen.hparams import describe_settings, search_ranges
from unseen.methods import METHODS

CELL = ("fedavg", "75", "")


def score(domain, split, value):
    return {"domain": domain, "split": split, "count": 10, "metrics": {"accuracy": value, "loss": 1 - value}}


def write_job(job, work, rounds):
    """Write a finished job; `rounds` lists for every round {(domain, split): accuracy}."""
    folder = job.folder(work)
    folder.mkdir(parents=True)
    job.config.save(folder / "config.toml")
    records = [{"event": "start", "data": {"fingerprint": "same"}}]
    for number, scores in enumerate(rounds, start=1):
        listed = [score(*place, value) for place, value in scores.items()]
        records.append({"event": "evaluation", "round": number, "scores": listed})
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    metrics = {"in_domain": None, "target": {"accuracy": 0.5}}
    result = {"task": "classification", "model": "m", "seconds": 1.0, "bytes_up": 1, "bytes_down": 2}
    (folder / "result.json").write_text(json.dumps({**result, "metrics": metrics}))


class Median(SelectionRule):
    """A rule of a plugin, which takes the round in the middle and is shown no target score."""

    name, label, summary = "median", "middle round", "the round in the middle was taken"

    def rank(self, evaluation, metric):
        assert [score["split"] for score in evaluation["scores"]] == ["validation"]
        return 0.0, 0.0, -abs(evaluation["round"] - 2)


def test_a_registered_rule_has_a_number_and_its_label_in_the_tables(make_grid, tmp_path, monkeypatch):
    monkeypatch.setitem(SELECTION_RULES._entries, "median", Median())
    grid, shelf = make_grid(methods={"fedavg": {}}, domains=("0", "60", "75")), ResultStore(tmp_path)
    (entry,) = make_plan(grid, shelf).entries
    rounds = [{("0", "validation"): 0.9 - i / 10, ("75", "target"): i / 10} for i in (1, 2, 3)]
    write_job(entry.job, tmp_path, rounds)
    results = collect_results(make_plan(grid, shelf), shelf)
    assert results[0].accuracy == {"source-validation": 0.1, "last": 0.3, "oracle": 0.3, "median": 0.2}
    (found,) = summarize_bench(grid, results).models
    assert [table.rule for table in found.tables] == ["source-validation", "median", "last", "oracle"]
    assert "middle round" in rules_sheet(found.tables).headers


def test_folds_hold_out_the_target_and_one_source_each(make_grid, tmp_path):
    grid = make_grid(domains=("0", "60", "75"), hold_out=("75", "60"), selection="lodo")
    job = grid.job("fedavg", "75", 0)
    assert [(fold.config.hold_out, fold.left_out) for fold in folds(grid, job)] == [
        (("0", "75"), "0"),
        (("60", "75"), "60"),
    ]
    plan = make_plan(grid, ResultStore(tmp_path))
    mine = [job for job in plan.jobs if job.label == "fedavg"]
    assert len(mine) == 2 + 3, "the run without 60 and 75 serves both targets"


def test_folds_leave_out_sources_only(make_grid):
    grid = make_grid(domains=("0", "15", "60", "75"))
    job = grid.job("fedavg", "75", 0, sources=["60", "0", "75"])
    assert [fold.left_out for fold in folds(grid, job)] == ["0", "60"]
    job = grid.job("fedavg", "75", 0, validate_on=["60"])
    assert [fold.left_out for fold in folds(grid, job)] == ["0", "15"]


def test_folds_need_two_sources(make_grid):
    grid = make_grid(domains=("0", "75"))
    with pytest.raises(UsageError, match="two source domains"):
        folds(grid, grid.job("fedavg", "75", 0))


def test_leave_one_domain_out_takes_the_round_that_is_best_on_the_left_out_sources(make_grid, tmp_path):
    grid = make_grid(methods={"fedavg": {}}, domains=("0", "60", "75"), selection="lodo")
    ((entry,), shelf) = make_plan(grid, ResultStore(tmp_path)).entries, ResultStore(tmp_path)
    own, target = [0.9, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4]
    write_job(
        entry.job,
        tmp_path,
        [{("0", "validation"): v, ("75", "target"): t} for v, t in zip(own, target, strict=True)],
    )
    (result,) = collect_results(make_plan(grid, shelf), shelf)
    assert result.accuracy == {"source-validation": 0.1, "last": 0.4, "oracle": 0.4}, "folds are missing"
    for fold, left in zip(entry.folds, ([0.5, 0.5, 0.9, 0.5], [0.5, 0.6, 0.3, 0.5]), strict=True):
        rounds = [
            {(fold.left_out, "target"): v, ("75", "target"): t}
            for v, t in zip(left, [1, 0, 0, 0.9], strict=True)
        ]
        write_job(fold, tmp_path, rounds)
    (result,) = collect_results(make_plan(grid, shelf), shelf)
    assert result.accuracy["leave-one-domain-out"] == 0.3, "means are 0.5, 0.55, 0.6, 0.5: round 3"
    assert result.curve == target and result.in_domain is None


def test_the_left_out_rule_breaks_ties_by_loss_then_by_the_earlier_round(make_grid, tmp_path):
    grid = make_grid(methods={"fedavg": {}}, domains=("0", "60", "75"), selection="lodo")
    (entry,) = make_plan(grid, ResultStore(tmp_path)).entries
    for fold in entry.folds:
        write_job(fold, tmp_path, [{(fold.left_out, "target"): 0.5}] * 3)
    runs = ResultStore(tmp_path).get_all(entry.folds)
    assert runs is not None
    assert choose_round("75", runs) == 1


def test_the_left_out_rule_chooses_a_round_that_a_run_with_an_early_end_has(make_grid, tmp_path):
    grid = make_grid(methods={"fedavg": {}}, domains=("0", "60", "75"), selection="lodo")
    shelf = ResultStore(tmp_path)
    (entry,) = make_plan(grid, shelf).entries
    write_job(entry.job, tmp_path, [{("0", "validation"): 0.5, ("75", "target"): t} for t in (0.1, 0.2)])
    for fold, left in zip(entry.folds, ([0.3, 0.5, 0.9, 0.9], [0.3, 0.4, 0.9]), strict=True):
        write_job(fold, tmp_path, [{(fold.left_out, "target"): value} for value in left])
    (result,) = collect_results(make_plan(grid, shelf), shelf)
    assert result.accuracy["leave-one-domain-out"] == 0.2, "folds have three rounds, the run has two"


@pytest.mark.parametrize("name", list(METHODS))
def test_trials_draw_what_is_declared(make_grid, name):
    grid = make_grid(methods={name: {}}, search=4)
    ranges = search_ranges(METHODS[name].settings_type())
    assert trial_options(grid, name, 0) == {}, "the method as it is"
    drawn = [trial_options(grid, name, trial) for trial in (1, 2, 3)]
    assert drawn == [trial_options(grid, name, trial) for trial in (1, 2, 3)]
    assert len({options["lr"] for options in drawn}) == 3
    for options in drawn:
        assert set(options) == {"lr", "weight_decay", "settings"}
        assert set(options["settings"]) == set(ranges)
        assert all(options["settings"][key] in ranges[key] for key in ranges)
        grid.job(name, "75", 0, **options)
    for key, default, _ in describe_settings(METHODS[name].settings_type()):
        assert key not in ranges or default in ranges[key], "a range holds the paper's value"


def test_common_draws_are_shared_and_given_settings_stay(make_grid):
    methods = {
        "fedavg": {},
        "a": {"method": "moon", "settings": {"mu": 3.0}},
        "b": {"method": "moon", "lr": 0.2},
    }
    grid = make_grid(methods=methods, search=2)
    plain, a, b = (trial_options(grid, label, 1) for label in methods)
    assert plain["lr"] == a["lr"] and "lr" not in b and plain["weight_decay"] == b["weight_decay"]
    assert a["settings"]["mu"] == 3.0 != b["settings"]["mu"]
    assert a["settings"]["temperature"] == b["settings"]["temperature"]
    adam = make_grid(methods={"fedavg": {"optimiser": "adam"}}, search=2)
    assert trial_options(adam, "fedavg", 1)["lr"] <= 0.003


def test_search_runs_trials_first_and_then_the_best_with_all_seeds(make_grid, tmp_path):
    grid = make_grid(methods={"fedavg": {}, "ppdg": {}}, seeds=(0, 1, 2), search=3, trial_seeds=2)
    shelf = ResultStore(tmp_path)
    plan = make_plan(grid, shelf)
    assert not plan.settled and not plan.entries
    counts = [sum(job.label == label for job in plan.jobs) for label in grid.methods]
    assert counts == [6, 6], "every method has the same budget"
    values = {(0, 0): 0.6, (0, 1): 0.6, (1, 0): 0.9, (1, 1): 0.2, (2, 0): 0.6, (2, 1): 0.7}
    for (trial, seed), value in values.items():
        for label in grid.methods:
            rounds = [
                {("0", "validation"): 0.1, ("75", "target"): 1.0},
                {("0", "validation"): value, ("75", "target"): 0.1 * trial},
            ]
            write_job(trial_job(grid, (label, "75", ""), trial, seed), tmp_path, rounds)
    assert choose_trial(grid, CELL, shelf, rule="source-validation") == 2, "means 0.6, 0.55, 0.65"
    plan = make_plan(grid, shelf)
    assert plan.settled and plan.chosen == {("fedavg", "75", ""): 2, ("ppdg", "75", ""): 2}
    assert [(entry.job.label, entry.job.seed) for entry in plan.entries] == [
        (label, seed) for seed in (0, 1, 2) for label in ("fedavg", "ppdg")
    ]
    missing = [job for job in plan.jobs if not shelf.holds(job)]
    assert [(job.label, job.seed, job.trial) for job in missing] == [("fedavg", 2, 2), ("ppdg", 2, 2)]


def test_a_failed_trial_is_not_chosen_and_stops_nobody(make_grid, tmp_path):
    grid = make_grid(methods={"fedavg": {}}, search=3)
    bad = trial_job(grid, CELL, 1, 0)
    for trial, value in ((0, 0.4), (2, 0.5)):
        write_job(
            trial_job(grid, CELL, trial, 0), tmp_path, [{("0", "validation"): value, ("75", "target"): 0}]
        )
    shelf = ResultStore(tmp_path)
    assert not make_plan(grid, shelf).settled
    plan = make_plan(grid, shelf, has_failed=lambda job: job.id == bad.id)
    assert plan.settled and plan.chosen == {CELL: 2}
    nothing = make_plan(grid, ResultStore(tmp_path / "empty"), has_failed=lambda _: True)
    assert nothing.settled and nothing.chosen == {CELL: None} and not nothing.entries
