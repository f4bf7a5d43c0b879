"""Random search: the same number of trials per method, chosen without using the held-out domain.

Trial 0 is the method as the grid defines it. The others draw the common options and the method's settings
from their ranges; what the grid fixes for a method is not searched. The choice is made per held-out domain,
since the sources differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from unseen.bench.bench_job import BenchJob
from unseen.bench.grid import LEAVE_ONE_DOMAIN_OUT, Grid, cells
from unseen.bench.lodo_cv import best_mean, folds
from unseen.bench.result_store import FinishedRun, ResultStore, without_domain
from unseen.evaluation.selection import SourceValidation, mean_metric, select
from unseen.hparams import search_ranges
from unseen.methods.base import METHODS
from unseen.seeding import numpy_generator
from unseen.training.optimizers import OPTIMIZERS

Cell = tuple[str, str, str]
"""A label, a held-out domain and a model."""


def _trial_seeds(grid: Grid, cell: Cell) -> tuple[int, ...]:
    return grid.seeds_for(cell[1])[: grid.trial_seeds]


def trial_options(grid: Grid, label: str, trial: int) -> dict[str, Any]:
    """Draw what a trial changes: trials of the same number have the same common options for every method.

    Common options are those that the optimizer's registry entry has ranges for. The batch size is not among
    them: the smallest client bounds it, and it changes how much a round computes.
    """
    if trial == 0:
        return {}
    seed, fixed = grid.seeds[0], grid.methods[label]
    merged = {**grid.common, **fixed}
    method = merged.get("method", label)
    common = {
        name: values.draw(numpy_generator(seed, "search: common", trial, name))
        for name, values in OPTIMIZERS[merged.get("optimiser", "sgd")].search.items()
        if name not in fixed
    }
    given = dict(fixed.get("settings", {}))
    drawn = {
        name: values.draw(numpy_generator(seed, "search: settings", method, trial, name))
        for name, values in search_ranges(METHODS[method].settings_type()).items()
        if name not in given
    }
    return {**common, "settings": {**merged.get("settings", {}), **drawn, **given}}


def trial_job(grid: Grid, cell: Cell, trial: int, seed: int) -> BenchJob:
    """Make the job of one trial with one seed."""
    label, held_out, model = cell
    job = grid.job(label, held_out, seed, model, **trial_options(grid, label, trial))
    return replace(job, trial=trial)


def trial_jobs(grid: Grid) -> list[BenchJob]:
    """List all trials by number, so that a search stopped early is balanced over the methods."""
    found = []
    for trial in range(grid.search):
        for seed in grid.seeds:
            for cell in cells(grid, seed):
                if seed not in _trial_seeds(grid, cell):
                    continue
                job = trial_job(grid, cell, trial, seed)
                found += [job, *(folds(grid, job) if grid.leaves_domains_out else [])]
    return found


def search_report(grid: Grid, store: ResultStore) -> list[dict[str, Any]]:
    """List every trial of every cell with its options and score, and which one was chosen."""
    rules = [SourceValidation.name, *([LEAVE_ONE_DOMAIN_OUT] if grid.leaves_domains_out else [])]
    found = []
    for cell, rule in product(cells(grid), rules):
        label, held_out, model = cell
        trials = [
            {
                "trial": trial,
                "score": None if math.isnan(score) else score,
                "options": trial_options(grid, label, trial),
            }
            for trial, score in trial_scores(grid, cell, store, rule=rule).items()
        ]
        chosen = choose_trial(grid, cell, store, rule=rule)
        place = {"label": label, "held_out": held_out, "model": model, "rule": rule}
        found.append({**place, "chosen": chosen, "trials": trials})
    return found


def trial_scores(grid: Grid, cell: Cell, store: ResultStore, *, rule: str) -> dict[int, float]:
    """Compute the score of every trial, which `choose_trial` maximizes; NaN for failed trials."""
    return {trial: _mean_score(grid, cell, trial, store, rule=rule) for trial in range(grid.search)}


def choose_trial(grid: Grid, cell: Cell, store: ResultStore, *, rule: str) -> int | None:
    """Return the trial with the best mean over its seeds; ties go to the earlier; None if all failed.

    rule  source-validation, or leave-one-domain-out: neither uses the held-out domain
    """
    scores = trial_scores(grid, cell, store, rule=rule)
    usable = {trial: score for trial, score in scores.items() if not math.isnan(score)}
    return max(usable, key=lambda trial: (usable[trial], -trial), default=None)


def _mean_score(grid: Grid, cell: Cell, trial: int, store: ResultStore, *, rule: str) -> float:
    """Average over seeds; NaN if a run failed or its metric is not defined."""
    held_out, scores = cell[1], list[float]()
    for seed in _trial_seeds(grid, cell):
        job = trial_job(grid, cell, trial, seed)
        wanted = [job] if rule == SourceValidation.name else folds(grid, job)
        runs = store.get_all(wanted)
        if runs is None:
            return math.nan
        scores.append(
            _validation_score(held_out, runs[0])
            if rule == SourceValidation.name
            else best_mean(held_out, runs)
        )
    return sum(scores) / len(scores)


def _validation_score(held_out: str, run: FinishedRun) -> float:
    """Return the sources' validation metric in the round that source validation chooses."""
    blind: Sequence[dict[str, Any]] = without_domain(run.evaluations, held_out)
    best = select(blind, SourceValidation.name, run.task)
    return math.nan if best is None else mean_metric(best, "validation", run.metric)
