"""Tables: the numbers behind every cell, what is bold, what is marked, and what missing runs do to them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from unseen.bench.comparisons import compare_all_pairs, compare_with_baseline
from unseen.bench.statistics import Estimate, holm, paired_comparison
from unseen.bench.study import display_name, studies
from unseen.bench.tables.results_table import make_table, mean_over_domains

HONEST = "source-validation"


def only(grid, results):
    (study,) = studies(grid, results)
    return study


def test_cells_are_means_over_seeds_and_the_mean_is_over_domains(grid_of, result_of):
    grid = grid_of(methods={"csac": {}}, hold_out=("a", "b"), seeds=(0, 1), baseline=None)
    values = {("a", 0): 0.8, ("a", 1): 0.9, ("b", 0): 0.5, ("b", 1): 0.4}
    study = only(grid, [result_of("csac", *key, value) for key, value in values.items()])
    (row,) = make_table(study, HONEST).rows
    assert row.name == "CSAC"
    assert [cell.estimate.mean for cell in row.cells] == pytest.approx([0.85, 0.45])
    assert [cell.estimate.error for cell in row.cells] == pytest.approx([0.05, 0.05])
    # The seeds' means over both domains are 0.65 and 0.65: their error is zero, though the domains' is not.
    assert (row.mean.estimate.mean, row.mean.estimate.error) == pytest.approx((0.65, 0.0))
    assert row.runs == 4


def test_the_best_is_bold_alone_or_with_its_equals(grid_of, result_of):
    grid = grid_of(methods={"a": {}, "b": {}, "c": {}}, hold_out=("x", "y"), seeds=(0,), baseline=None)
    levels = {"a": (0.5, 0.9), "b": (0.6, 0.9), "c": (0.6, 0.7)}
    results = [
        result_of(label, domain, 0, value)
        for label, both in levels.items()
        for domain, value in zip("xy", both, strict=True)
    ]
    rows = make_table(only(grid, results), HONEST).rows
    assert [[cell.best for cell in row.cells] for row in rows] == [[False, True], [True, True], [True, False]]
    assert [row.mean.best for row in rows] == [False, True, False]


def test_a_row_that_lacks_runs_is_never_the_best(grid_of, results_of):
    grid = grid_of()
    results = [result for result in results_of(grid) if (result.label, result.held_out) != ("csac", "45")]
    table = make_table(only(grid, results), HONEST)
    csac = next(row for row in table.rows if row.label == "csac")
    assert csac.mean.estimate is None
    assert csac.runs == 9
    assert table.planned == 12
    assert not table.complete
    assert csac.cells[0].best
    assert not csac.cells[3].best
    assert sum(row.mean.best for row in table.rows) == 1


def test_a_grid_that_is_balanced_so_far_has_a_best(grid_of, results_of):
    grid = grid_of()
    table = make_table(only(grid, [result for result in results_of(grid) if result.seed < 2]), HONEST)
    assert [row.label for row in table.rows if row.mean.best] == ["csac"]


def test_fewer_runs_never_win(grid_of, results_of):
    grid = grid_of()
    lucky = [r for r in results_of(grid) if r.label != "csac" or (r.seed == 0 or r.held_out == "0")]
    rows = {row.label: row for row in make_table(only(grid, lucky), HONEST).rows}
    assert rows["csac"].mean.estimate.mean > rows["deepall"].mean.estimate.mean
    assert rows["deepall"].mean.best
    assert not rows["csac"].mean.best
    assert [cell.best for cell in rows["csac"].cells] == [True, False, False, False]


def test_one_missing_seed_leaves_the_mean_but_says_so(grid_of, results_of):
    grid = grid_of()
    results = [r for r in results_of(grid) if (r.label, r.held_out, r.seed) != ("csac", "15", 2)]
    estimate = mean_over_domains(only(grid, results), "csac", HONEST)
    assert estimate is not None
    assert estimate.count == 11
    by_seed = [
        np.mean([r.accuracy[HONEST] for r in results if (r.label, r.seed) == ("csac", s)]) for s in (0, 1)
    ]
    assert estimate.error == pytest.approx(np.std(by_seed, ddof=1) / math.sqrt(2))


def test_every_rule_has_its_own_numbers(grid_of, results_of):
    study = only(grid_of(), results_of(grid_of()))
    assert study.rules == ("source-validation", "last", "oracle")
    honest, last, oracle = (make_table(study, rule).rows[0].mean.estimate.mean for rule in study.rules)
    assert (honest - last, oracle - honest) == pytest.approx((0.01, 0.01))


def test_leave_one_domain_out_comes_second_where_it_was_run(grid_of, results_of):
    results = results_of(grid_of())
    results[0] = dataclasses.replace(
        results[0], accuracy={**results[0].accuracy, "leave-one-domain-out": 0.7}
    )
    assert only(grid_of(), results).rules[:2] == ("source-validation", "leave-one-domain-out")


def test_significance_is_marked_against_the_baseline(grid_of, results_of):
    grid = grid_of()
    results = results_of(grid, levels={"fedavg": 0.8, "csac": 0.86, "deepall": 0.74})
    rows = make_table(only(grid, results), HONEST, baseline="fedavg").rows
    assert {row.label: row.mean.verdict for row in rows} == {
        "fedavg": "",
        "csac": "better",
        "deepall": "worse",
    }


def test_no_mark_without_a_difference(grid_of, results_of):
    grid = grid_of()
    results = results_of(grid, levels=dict.fromkeys(grid.methods, 0.8))
    rows = make_table(only(grid, results), HONEST, baseline="fedavg").rows
    assert {row.mean.verdict for row in rows} == {""}


def test_comparisons_are_corrected_together(grid_of, results_of):
    study = only(grid_of(), results_of(grid_of(), levels={"fedavg": 0.8, "csac": 0.802, "deepall": 0.805}))
    found = compare_with_baseline(study, HONEST, "fedavg")
    raw = [
        paired_comparison(study.values(each, HONEST), study.values("fedavg", HONEST)).t_p
        for each in ("csac", "deepall")
    ]
    assert [each.ours for each in found] == ["csac", "deepall"]
    assert [each.corrected_p for each in found] == pytest.approx(holm(raw))
    assert {each.comparisons for each in found} == {2}
    assert all(each.runs.pairs == 12 and each.domains.pairs == 4 for each in found)
    assert "over 12 pairs" in found[0].words


def test_every_two_methods_meet_once(grid_of, results_of):
    study = only(grid_of(), results_of(grid_of()))
    met = [(each.ours, each.baseline) for each in compare_all_pairs(study, HONEST)]
    assert met == [("fedavg", "csac"), ("fedavg", "deepall"), ("csac", "deepall")]


def test_unbalanced_grids_pair_what_there_is(grid_of, results_of):
    grid = grid_of()
    results = [r for r in results_of(grid) if not (r.label == "csac" and r.seed == 2 and r.held_out != "0")]
    (csac, _) = compare_with_baseline(only(grid, results), HONEST, "fedavg")
    assert (csac.runs.pairs, csac.runs.missing) == (9, 3)
    assert "(3 of 12 pairs lack a finished run)" in csac.words


def test_numbers_that_are_none_do_not_count(grid_of, results_of):
    grid = grid_of()
    results = results_of(grid)
    broken = dataclasses.replace(results[0], accuracy=dict.fromkeys(results[0].accuracy, math.nan))
    row = make_table(only(grid, [broken, *results[1:]]), HONEST).rows[0]
    assert row.runs == 11
    assert row.cells[0].estimate.count == 2


def test_a_bench_without_results_has_an_empty_table(grid_of):
    (study,) = studies(grid_of(), [])
    table = make_table(study, HONEST, baseline="fedavg")
    assert [row.runs for row in table.rows] == [0, 0, 0]
    assert {cell.estimate for row in table.rows for cell in (*row.cells, row.mean)} == {None}


def test_models_are_studied_apart_and_others_results_left_out(grid_of, results_of):
    grid = grid_of(models=("small-cnn", "lenet"))
    results = results_of(grid)
    stray = dataclasses.replace(results[0], label="ppdg")
    both = studies(grid, [*results, stray])
    assert [study.model for study in both] == ["small-cnn", "lenet"]
    assert [len(study.results) for study in both] == [36, 36]
    assert make_table(both[1], HONEST).model == "lenet"


def test_all_domains_are_those_that_were_seen(grid_of, results_of):
    results = results_of(grid_of())
    assert only(grid_of(hold_out=("all",)), results).domains == ("0", "15", "30", "45")


@pytest.mark.parametrize(
    ("label", "shown"),
    [("csac", "CSAC"), ("csac strength=0.1", "CSAC strength=0.1"), ("ppdg-0.2", "PPDG-0.2"), ("mine", "mine"),
     ("fedavg-share", "FedAvg-Share"), ("Fancy", "Fancy")],
)  # fmt: skip
def test_labels_wear_the_names_of_papers(label, shown):
    assert display_name(label) == shown


def test_an_estimate_of_one_run_has_no_error(grid_of, results_of):
    grid = grid_of(seeds=(0,))
    row = make_table(only(grid, results_of(grid)), HONEST, baseline="fedavg").rows[0]
    assert row.mean.estimate == Estimate(row.mean.estimate.mean, None, 4)


def test_labels_with_networks_of_their_own_stand_in_one_table(grid_of, result_of):
    methods = {"lenet": {"method": "fedavg", "model": "lenet"}, "mnist-cnn": {"method": "fedavg"}}
    grid = grid_of(methods=methods, hold_out=("a",), seeds=(0,), baseline=None)
    results = [
        dataclasses.replace(result_of(label, "a", 0, value), model=label)
        for label, value in (("lenet", 0.7), ("mnist-cnn", 0.8))
    ]
    rows = make_table(only(grid, results), HONEST).rows
    assert [row.cells[0].estimate.mean for row in rows] == [0.7, 0.8]
