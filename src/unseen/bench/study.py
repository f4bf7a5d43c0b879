"""The results of one model, by selection rule, label, held-out domain and seed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from unseen.bench.grid import ALL, Grid
from unseen.bench.results import JobResult
from unseen.bench.row_weights import row_weights
from unseen.evaluation.selection import list_rules
from unseen.methods import METHODS

Values = Mapping[tuple[str, int], float]
"""(held-out domain, seed) -> metric."""


@dataclass(frozen=True)
class Study:
    """All finished jobs of one model, and what the grid planned for it.

    seeds_at the seeds of each held-out domain
    several  whether the bench has other models too, so that tables must name this one
    weights  weights of the clients by label; empty where the grid does not name them
    """

    model: str
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    seeds: tuple[int, ...]
    results: tuple[JobResult, ...]
    seeds_at: Mapping[str, tuple[int, ...]]
    several: bool = False
    weights: Mapping[str, str] = field(default_factory=dict)
    _found: dict[tuple[str, str], Values] = field(default_factory=dict, repr=False, compare=False)

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.results[0].metric if self.results else "accuracy"

    @property
    def in_title(self) -> str:
        """The model as a suffix of titles; empty if the bench has only one."""
        return f", {self.model}" if self.several else ""

    @property
    def rules(self) -> tuple[str, ...]:
        """The selection rules that any job has a value for, in the order of the tables."""
        known = {rule for result in self.results for rule in result.accuracy}
        return tuple(rule.name for rule in list_rules() if rule.name in known)

    @property
    def planned(self) -> int:
        """Number of runs per label when the bench is complete."""
        return sum(len(self.seeds_at[domain]) for domain in self.domains)

    def values(self, label: str, rule: str) -> Values:
        """Return a label's values by held-out domain and seed; undefined ones are left out."""
        if (label, rule) not in self._found:
            self._found[label, rule] = {
                (result.held_out, result.seed): result.accuracy[rule]
                for result in self.results
                if result.label == label and math.isfinite(result.accuracy.get(rule, math.nan))
            }
        return self._found[label, rule]

    def by_domain(self, label: str, rule: str) -> dict[str, list[float]]:
        """Return a label's values per domain, one per seed; domains without values are left out."""
        found: dict[str, list[float]] = {}
        for (domain, _), value in self.values(label, rule).items():
            found.setdefault(domain, []).append(value)
        return {domain: found[domain] for domain in self.domains if domain in found}


def studies(grid: Grid, results: Sequence[JobResult]) -> list[Study]:
    """Make one study per model; what the grid leaves open is taken from the results.

    Labels with different networks are compared with each other: they make one study.
    """
    models = grid.models or tuple(dict.fromkeys(result.model for result in results)) or ("",)
    if any("model" in options for options in grid.methods.values()):
        models = ("",)
    seen = tuple(dict.fromkeys(result.held_out for result in results))
    domains = seen if grid.hold_out == (ALL,) else grid.hold_out
    return [
        Study(
            model=model,
            labels=tuple(grid.methods),
            domains=domains,
            seeds=grid.seeds,
            seeds_at={domain: grid.seeds_for(domain) for domain in domains},
            results=tuple(result for result in results if _belongs(result, model, grid, domains)),
            several=len(models) > 1,
            weights=row_weights(grid.common, grid.methods),
        )
        for model in models
    ]


def display_name(label: str) -> str:
    """Format a label for tables: a method's name at its start is spelled as in its paper."""
    for name in sorted(METHODS, key=len, reverse=True):
        if re.match(rf"{re.escape(name)}(?![a-z0-9])", label):
            return METHODS[name].title + label[len(name) :]
    return label


def _belongs(result: JobResult, model: str, grid: Grid, domains: Sequence[str]) -> bool:
    """Return whether a result is part of the grid; a folder may also have those of a larger grid."""
    planned = result.label in grid.methods and result.held_out in domains
    planned = planned and result.seed in grid.seeds_for(result.held_out)
    return planned and model in ("", result.model)
