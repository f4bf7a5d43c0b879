"""The jobs of a bench, as a pure function of the grid and of the finished jobs.

A search runs first; once all its trials are settled, the chosen settings are run with every seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from unseen.bench.bench_job import BenchJob
from unseen.bench.grid import LEAVE_ONE_DOMAIN_OUT, Grid, cells, jobs
from unseen.bench.lodo_cv import folds
from unseen.bench.result_store import ResultStore
from unseen.bench.search import Cell, choose_trial, trial_job, trial_jobs
from unseen.evaluation.selection import SourceValidation


@dataclass(frozen=True)
class PlannedEntry:
    """One value of the tables: a job, and the runs by which leave-one-domain-out chooses its round.

    judged  the job whose round the folds choose: `job` itself, unless a search chose another setting for it
    """

    job: BenchJob
    judged: BenchJob
    folds: tuple[BenchJob, ...] = ()


@dataclass(frozen=True)
class JobPlan:
    """All jobs of a bench that are known so far.

    settled  whether nothing will be added: no search, or its choices are made
    chosen   cell -> the trial that source validation chose; empty without a search
    """

    trials: tuple[BenchJob, ...]
    entries: tuple[PlannedEntry, ...]
    settled: bool
    chosen: dict[Cell, int | None]

    @property
    def jobs(self) -> list[BenchJob]:
        """Every job once, in the order they should run."""
        wanted = [*self.trials]
        for entry in self.entries:
            wanted += [entry.job, entry.judged, *entry.folds]
        return list(unique(wanted).values())


def unique(found: Iterable[BenchJob]) -> dict[str, BenchJob]:
    """Index jobs by id; if several cells of the grid need the same run, the first one names it."""
    by_id: dict[str, BenchJob] = {}
    for job in found:
        by_id.setdefault(job.id, job)
    return by_id


def make_plan(
    grid: Grid, store: ResultStore, *, has_failed: Callable[[BenchJob], bool] = lambda _: False
) -> JobPlan:
    """Plan the jobs; while trials are unsettled (neither finished nor failed) only they are known."""
    if not grid.search:
        return JobPlan((), tuple(_entry(grid, job) for job in jobs(grid)), settled=True, chosen={})
    trials = tuple(trial_jobs(grid))
    if not all(store.holds(job) or has_failed(job) for job in trials):
        return JobPlan(trials, (), settled=False, chosen={})
    chosen = _choices(grid, store, SourceValidation.name)
    judged = _choices(grid, store, LEAVE_ONE_DOMAIN_OUT) if grid.leaves_domains_out else chosen
    entries = list[PlannedEntry]()
    for seed in grid.seeds:
        for cell in cells(grid, seed):
            if (trial := chosen[cell]) is not None:
                other = judged[cell]
                best = trial_job(grid, cell, trial if other is None else other, seed)
                entries.append(replace(_entry(grid, best), job=trial_job(grid, cell, trial, seed)))
    return JobPlan(trials, tuple(entries), settled=True, chosen=chosen)


def _choices(grid: Grid, store: ResultStore, rule: str) -> dict[Cell, int | None]:
    return {cell: choose_trial(grid, cell, store, rule=rule) for cell in cells(grid)}


def _entry(grid: Grid, job: BenchJob) -> PlannedEntry:
    return PlannedEntry(job, job, tuple(folds(grid, job)) if grid.leaves_domains_out else ())
