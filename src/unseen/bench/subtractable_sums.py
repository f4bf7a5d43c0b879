"""Warnings where the runs of a bench, taken together, undo a protection that hides updates in sums.

Runs of one seed start from the same weights. Where they hold out different domains, their first sums are over
different clients, and the difference of two sums is the update of those that are in one of them only.
"""

from __future__ import annotations

from unseen.bench.grid import Grid, jobs
from unseen.bench.lodo_cv import folds
from unseen.privacy import make_protection


def warn_of_differences(grid: Grid) -> list[str]:
    """List, one sentence each, the entries of a grid whose runs would let sums be subtracted."""
    found: dict[str, str] = {}
    runs: dict[tuple[str, int, str], set[tuple[str, ...]]] = {}
    for job in jobs(grid):
        config = job.config
        protection = make_protection(config.protect, config.protect_settings)
        if not protection.seals or protection.noised_at_client:
            continue
        left_out = [config.hold_out]
        if grid.leaves_domains_out:
            left_out += [fold.config.hold_out for fold in folds(grid, job)]
        held = runs.setdefault((job.label, job.seed, job.model), set())
        held.update(left_out)
        if len(held) > 1:
            found[job.label] = (
                f"{job.label}: its runs of one seed hold out different domains, so whoever has the sums that "
                f"{config.protect} opens can subtract them and come close to single clients' updates; "
                "protect data of several parties by one run per federation, or add differential privacy"
            )
    return list(found.values())
