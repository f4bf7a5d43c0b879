"""A recipe: which table or figure of which paper, and the grid that makes it again."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from unseen.bench.grid import Grid
from unseen.bench.papers.published import PublishedPaper, published_papers
from unseen.bench.papers.recipes.budget import BUDGETS, budgeted
from unseen.errors import UsageError, unknown_name

_SUFFIX = ".toml"


@dataclass(frozen=True)
class Recipe:
    """One file of this folder.

    name     the paper and its number of the table or figure, `csac-table3`; parts of one have a third word
    shows    what it is in the paper: Table 3
    about    what is compared on what, in a line
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
        """The data set's name."""
        return str(self.setting["common"]["data"])

    def grid(self, budget: str) -> Grid:
        """The grid at one of the budgets."""
        if budget not in BUDGETS:
            raise unknown_name("budget", budget, BUDGETS)
        grid = budgeted(self.setting, self.budgets.get(budget, {}))
        return grid if budget == "paper" else _told(grid, budget)


def list_recipes() -> list[str]:
    """Names of all recipes, by paper, tables before figures."""
    names = [entry.name.removesuffix(_SUFFIX) for entry in files(__package__).iterdir()]
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
    text = files(__package__).joinpath(name + _SUFFIX).read_text(encoding="utf-8")
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


def _told(grid: Grid, budget: str) -> Grid:
    """Say on the page that this is not the paper's budget."""
    rounds, seeds = grid.common["rounds"], len(grid.seeds)
    said = f"Budget {budget!r}, not the paper's: rounds {rounds}, seeds {seeds}."
    return Grid.from_mapping({**vars(grid), "note": f"{grid.note.strip()}\n\n{said}"})


def _order(name: str) -> tuple[str, str, int, str]:
    """Sort by paper, kind, number and part."""
    paper, _, rest = name.partition("-table")
    kind = "table" if rest else "figure"
    paper, _, rest = name.partition(f"-{kind}")
    number, _, part = rest.partition("-")
    return paper, "0" if kind == "table" else "1", int(number), part
