"""Which jobs a bench needs: a pure function of the grid and of what is finished, to be asked at any time.

A search comes first; once all its trials are settled the chosen settings are run with every seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from unseen.bench.finished import Shelf
from unseen.bench.grid import LEAVE_ONE_DOMAIN_OUT, Grid, cells
from unseen.bench.job import Job
from unseen.bench.leave_out import folds
from unseen.bench.search import Cell, choose_trial, trial_job, trial_jobs


@dataclass(frozen=True)
class Entry:
    """One number of the tables: a job, and the runs from which leave-one-domain-out takes its round.

    judged  the job whose round the folds choose: `job` itself, unless a search chose another setting for it
    """

    job: Job
    judged: Job
    folds: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All jobs of a bench as far as they are known now.

    settled  whether nothing will be added: no search, or its choices are made
    chosen   cell -> the trial that source validation took; empty without a search
    """

    trials: tuple[Job, ...]
    entries: tuple[Entry, ...]
    settled: bool
    chosen: dict[Cell, int | None]

    @property
    def jobs(self) -> list[Job]:
        """Every job once, in the order they should run."""
        wanted = [*self.trials]
        for entry in self.entries:
            wanted += [entry.job, entry.judged, *entry.folds]
        return list(unique(wanted).values())


def unique(jobs: Iterable[Job]) -> dict[str, Job]:
    """Jobs by id; of several places in the grid that ask for the same run the first one names it."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(job.id, job)
    return found


def make_plan(grid: Grid, shelf: Shelf, *, has_failed: Callable[[Job], bool] = lambda _: False) -> Plan:
    """Plan the jobs; while trials are unsettled (neither finished nor failed) only they are known."""
    if not grid.search:
        plain = tuple(
            _entry(grid, grid.job(*_in_order(cell, seed))) for seed in grid.seeds for cell in cells(grid)
        )
        return Plan((), plain, settled=True, chosen={})
    trials = tuple(trial_jobs(grid))
    if not all(shelf.holds(job) or has_failed(job) for job in trials):
        return Plan(trials, (), settled=False, chosen={})
    chosen = _choices(grid, shelf, "source-validation")
    judged = _choices(grid, shelf, LEAVE_ONE_DOMAIN_OUT) if grid.leaves_domains_out else chosen
    entries = list[Entry]()
    for seed in grid.seeds:
        for cell, trial in chosen.items():
            if trial is not None:
                other = judged[cell]
                best = trial_job(grid, cell, trial if other is None else other, seed)
                entries.append(replace(_entry(grid, best), job=trial_job(grid, cell, trial, seed)))
    return Plan(trials, tuple(entries), settled=True, chosen=chosen)


def _choices(grid: Grid, shelf: Shelf, rule: str) -> dict[Cell, int | None]:
    return {cell: choose_trial(grid, cell, shelf, rule=rule) for cell in cells(grid)}


def _in_order(cell: Cell, seed: int) -> tuple[str, str, int, str]:
    label, held_out, model = cell
    return label, held_out, seed, model


def _entry(grid: Grid, job: Job) -> Entry:
    return Entry(job, job, tuple(folds(grid, job)) if grid.leaves_domains_out else ())
