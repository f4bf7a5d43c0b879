"""A bench in Python: its jobs as a data frame, its tables in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_summary import BenchSummary, summarize_bench
from unseen.bench.grid import Grid
from unseen.bench.results import JobResult, as_values, read_results
from unseen.errors import UsageError
from unseen.frames import make_frame
from unseen.report.notebook import NotebookTable, notebook_html

_NOT_IN_FRAME = ("accuracy", "curve")
"""Entries of a line that are not one value; every selection rule of `accuracy` has a column of its own."""


@dataclass(frozen=True)
class BenchResult:
    """The finished jobs of a bench, and what is computed from them."""

    folder: Path
    grid: Grid
    results: tuple[JobResult, ...]

    @cached_property
    def summary(self) -> BenchSummary:
        """All tables, comparisons and sentences."""
        return summarize_bench(self.grid, self.results)

    def frame(self, library: str | None = None) -> Any:
        """Return a data frame with one line per finished job and one column per selection rule.

        library  "pandas" or "polars"; if not given, pandas where it is installed, else polars
        """
        return make_frame([_row(result) for result in self.results], library=library)

    def __repr__(self) -> str:
        """Name the folder and its size; a notebook shows the tables."""
        return f"BenchResult({str(self.folder)!r}, {self.summary.finished} of {self.summary.planned} runs)"

    def _repr_html_(self) -> str:
        """Show the sentence of the best method, and per model the table of the first rule and its tests."""
        sheets = [
            sheet
            for each in self.summary.models
            for sheets in (each.table_sheets, each.statistics_sheets)
            if (sheet := sheets.get(each.honest.rule))
        ]
        tables = [
            NotebookTable(sheet.headers, sheet.groups, title=sheet.title, note=sheet.note) for sheet in sheets
        ]
        return notebook_html(f"{self.summary.headline}.", tables, page=self.folder / "report.html")


def load_bench(folder: str | Path) -> BenchResult:
    """Read what `unseen bench` wrote to a folder, from its grid and its results alone."""
    place = BenchFolder(Path(folder))
    if not place.grid.exists():
        raise UsageError(f"{folder} has no {place.grid.name}: give the folder that 'unseen bench' wrote")
    return BenchResult(place.path, Grid.from_toml(place.grid), tuple(read_results(place.results)))


def _row(result: JobResult) -> dict[str, Any]:
    values = as_values(result)
    rules: dict[str, Any] = values["accuracy"]
    return {**{name: value for name, value in values.items() if name not in _NOT_IN_FRAME}, **rules}
