"""Recipes: for every table and figure of the papers the grid that reproduces it, at three budgets.

A recipe's file (in `recipes/`) is the paper's setting. `[budget.small]` and `[budget.smoke]` replace parts of
it: entries of the grid (seeds, held-out domains, labels to keep), fields of every run, settings of a method
wherever it is used (`settings.METHOD`), and finally fields of one label's runs (`options.LABEL`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from unseen.bench.grid import Grid
from unseen.bench.papers.published_tables import PublishedPaper, published_papers
from unseen.config import RunConfig
from unseen.errors import UsageError, unknown_name

_DATA = files(__package__) / "recipes"
_SUFFIX = ".toml"


@dataclass(frozen=True)
class Recipe:
    """One file of the folder `recipes`.

    name     the paper and its number of the table or figure, `csac-table3`; parts of one have a third word
    shows    its name in the paper: Table 3
    about    what is compared on which data, in one line
    figure   where its figure is drawn: bench:NAME on the bench's page, run:NAME in every job's report; empty
             for tables
    setting  the grid in the paper's setting, as the file has it
    budgets  what smaller budgets replace in it
    """

    name: str
    paper: PublishedPaper
    shows: str
    about: str
    figure: str
    setting: Mapping[str, Any]
    budgets: Mapping[str, Mapping[str, Any]]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.setting["common"]["data"])

    def grid(self, budget: str) -> Grid:
        """Return the grid at one of the budgets."""
        if budget not in BUDGETS:
            raise unknown_name("budget", budget, BUDGETS)
        grid = apply_budget(self.setting, self.budgets.get(budget, {}))
        return grid if budget == "paper" else _note_budget(grid, budget)


def list_recipes() -> list[str]:
    """List the names of all recipes, by paper, tables before figures."""
    names = [entry.name.removesuffix(_SUFFIX) for entry in _DATA.iterdir()]
    return sorted((name for name in names if "-table" in name or "-figure" in name), key=_order)


@cache
def load_recipe(name: str) -> Recipe:
    """Read a recipe by its name; a table of several parts is refused with their names."""
    known = list_recipes()
    if name not in known:
        parts = [other for other in known if other.startswith(f"{name}-")]
        if parts:
            raise UsageError(f"{name} has {len(parts)} parts, name one of them: {', '.join(parts)}")
        raise unknown_name("recipe", name, known)
    text = _DATA.joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    values = tomllib.loads(text)
    facts = values.pop("recipe")
    return Recipe(
        name=name,
        paper=published_papers()[facts.pop("paper")],
        figure=facts.pop("figure", ""),
        budgets=values.pop("budget"),
        setting=values,
        **facts,
    )


def _note_budget(grid: Grid, budget: str) -> Grid:
    """Add a note that this is not the paper's budget."""
    rounds, seeds = grid.common["rounds"], len(grid.seeds)
    added = f"Budget {budget!r}, not the paper's: rounds {rounds}, seeds {seeds}."
    return Grid.from_mapping({**vars(grid), "note": f"{grid.note.strip()}\n\n{added}"})


def _order(name: str) -> tuple[str, str, int, str]:
    """Sort by paper, kind, number and part."""
    paper, _, rest = name.partition("-table")
    kind = "table" if rest else "figure"
    paper, _, rest = name.partition(f"-{kind}")
    number, _, part = rest.partition("-")
    return paper, "0" if kind == "table" else "1", int(number), part


BUDGETS = {
    "smoke": "a test that it runs: seconds to a few minutes, the numbers are meaningless",
    "small": "about an hour on two cores for digits, longer for photographs; shorter training, fewer seeds",
    "paper": "the paper's setting",
}
_OF_GRID = ("seeds", "hold_out", "methods")
_OF_RUNS = {item.name for item in fields(RunConfig)} - {"hold_out", "seed", "method", "settings", "data"}


def apply_budget(grid: Mapping[str, Any], budget: Mapping[str, Any]) -> Grid:
    """Apply a budget to a recipe's grid."""
    known = {*_OF_GRID, *_OF_RUNS, "settings", "options"}
    for name in budget:
        if name not in known:
            raise unknown_name("entry of a budget", name, known)
    runs = {name: value for name, value in budget.items() if name in _OF_RUNS}
    settings, options = budget.get("settings", {}), budget.get("options", {})
    methods = {}
    for label, given in _select_labels(grid["methods"], budget.get("methods")).items():
        full = {**given, "method": given.get("method", label)}
        methods[label] = {**_shorten(full, runs, settings), **options.get(label, {})}
    _select_labels(methods, [*options])
    other = {name: budget[name] for name in ("seeds", "hold_out") if name in budget}
    baseline = grid.get("baseline") if grid.get("baseline") in methods else None
    common = {**grid["common"], **runs}
    return Grid.from_mapping({**grid, **other, "methods": methods, "common": common, "baseline": baseline})


def _select_labels(methods: Mapping[str, Any], wanted: list[str] | None) -> dict[str, Any]:
    if wanted is None:
        return dict(methods)
    for label in wanted:
        if label not in methods:
            raise unknown_name("label in a budget", label, methods)
    return {label: options for label, options in methods.items() if label in wanted}


def _shorten(
    options: Mapping[str, Any], runs: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a label's options without those the budget sets for all, with its method's shorter settings."""
    kept = {name: value for name, value in options.items() if name not in runs}
    shorter = settings.get(options["method"])
    if shorter is not None and not isinstance(shorter, Mapping):
        raise UsageError(f"settings.{options['method']} of a budget must be a table, not {shorter!r}")
    return {**kept, "settings": {**options.get("settings", {}), **shorter}} if shorter else kept
