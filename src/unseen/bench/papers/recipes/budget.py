"""Budgets: what a recipe becomes when there is not a month of graphics cards for it.

A recipe's file is the paper's setting. `[budget.small]` and `[budget.smoke]` replace parts of it: entries of
the grid (seeds, held-out domains, labels to keep), fields of every run, settings of a method wherever it is
used (`settings.METHOD`), and at last fields of one label's runs (`options.LABEL`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from unseen.bench.grid import Grid
from unseen.config import RunConfig
from unseen.errors import UsageError, unknown_name

BUDGETS = {
    "smoke": "does it run: seconds to a few minutes, the numbers mean nothing",
    "small": "about an hour on two cores for digits, longer for photographs; shorter training, fewer seeds",
    "paper": "what the paper did",
}
_OF_GRID = ("seeds", "hold_out", "methods")
_OF_RUNS = {item.name for item in fields(RunConfig)} - {"hold_out", "seed", "method", "settings", "data"}


def budgeted(grid: Mapping[str, Any], budget: Mapping[str, Any]) -> Grid:
    """Apply a budget to a recipe's grid."""
    known = {*_OF_GRID, *_OF_RUNS, "settings", "options"}
    for name in budget:
        if name not in known:
            raise unknown_name("entry of a budget", name, known)
    runs = {name: value for name, value in budget.items() if name in _OF_RUNS}
    settings, options = budget.get("settings", {}), budget.get("options", {})
    methods = {}
    for label, given in _kept(grid["methods"], budget.get("methods")).items():
        full = {**given, "method": given.get("method", label)}
        methods[label] = {**_shortened(full, runs, settings), **options.get(label, {})}
    _kept(methods, [*options])
    other = {name: budget[name] for name in ("seeds", "hold_out") if name in budget}
    baseline = grid.get("baseline") if grid.get("baseline") in methods else None
    common = {**grid["common"], **runs}
    return Grid.from_mapping({**grid, **other, "methods": methods, "common": common, "baseline": baseline})


def _kept(methods: Mapping[str, Any], wanted: list[str] | None) -> dict[str, Any]:
    if wanted is None:
        return dict(methods)
    for label in wanted:
        if label not in methods:
            raise unknown_name("label in a budget", label, methods)
    return {label: options for label, options in methods.items() if label in wanted}


def _shortened(
    options: Mapping[str, Any], runs: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A label's options without what the budget sets for all, and with its method's shorter settings."""
    kept = {name: value for name, value in options.items() if name not in runs}
    shorter = settings.get(options["method"])
    if shorter is not None and not isinstance(shorter, Mapping):
        raise UsageError(f"settings.{options['method']} of a budget must be a table, not {shorter!r}")
    return {**kept, "settings": {**options.get("settings", {}), **shorter}} if shorter else kept
