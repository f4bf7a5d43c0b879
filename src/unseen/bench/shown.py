"""What the figures of a bench are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unseen.bench.grid import Grid
from unseen.bench.statistics import Estimate
from unseen.bench.study import Study, display_name


@dataclass(frozen=True)
class Shown:
    """What a figure draws: the results of one model under one selection rule."""

    grid: Grid
    study: Study
    rule: str
    baseline: str | None = None

    @property
    def names(self) -> list[str]:
        """The methods as figures name them."""
        return [display_name(label) for label in self.study.labels]


def estimate_row(estimate: Estimate, **facts: Any) -> dict[str, Any]:
    """A chart's row: the mean, and an interval of one standard error to either side where there is one."""
    error = estimate.error
    ends = {} if error is None else {"low": estimate.mean - error, "high": estimate.mean + error}
    return {**facts, "value": estimate.mean, **ends}
