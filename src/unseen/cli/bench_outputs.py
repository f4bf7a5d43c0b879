"""What a bench leaves: results, the search, tables and page in its folder, and what the terminal is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from unseen.bench.bench_files import Outputs, write_outputs
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.grid import Grid
from unseen.bench.render import to_terminal
from unseen.bench.result_store import ResultStore
from unseen.bench.results import as_values, kept_results, write_results
from unseen.bench.runner import BenchOutcome
from unseen.bench.search import search_report
from unseen.errors import UsageError
from unseen.fileio import write_json
from unseen.runs.folder import RunFolder


@dataclass(frozen=True)
class Written:
    """What was found, for people and for machines."""

    folder: BenchFolder
    outcome: BenchOutcome
    search: list[dict[str, Any]]
    outputs: Outputs | None

    @property
    def values(self) -> dict[str, Any]:
        """The result for `--json`."""
        return {
            **(self.outputs.values if self.outputs else {}),
            "folder": str(self.folder.path),
            "results": [as_values(result) for result in self.outcome.results],
            "search": self.search,
            "failed": [
                {"job": job.id, "name": job.name, "reason": reason} for job, reason in self.outcome.failed
            ],
            "missing": [{"job": job.id, "name": job.name} for job in self.outcome.missing],
        }

    def print(self, console: Console) -> None:
        """Show the tables, what is significant in words, the choices of a search, and where the page is."""
        if self.outputs:
            for sheet in self.outputs.sheets:
                console.print(to_terminal(sheet))
            for words in self.outputs.sentences:
                console.print(f"{words}.", markup=False, soft_wrap=True)
        for cell in self.search:
            place = f"{cell['label']}, {cell['held_out']} held out: "
            console.print(place + _choice(cell), markup=False, soft_wrap=True)
        if self.outcome.missing:
            console.print(f"{len(self.outcome.missing)} jobs are still to be run.")
        if self.outputs:
            console.print(f"Page: {self.outputs.page}", soft_wrap=True)


def write_all(
    grid: Grid, folder: BenchFolder, outcome: BenchOutcome, *, latex: Path | None, csv: Path | None
) -> Written:
    """Write everything that follows from the finished jobs; without any there are no tables."""
    _require_no_loss(folder, outcome)
    if outcome.results or not folder.results.exists():
        write_results(folder.results, outcome.results)
    search: list[dict[str, Any]] = []
    if grid.search and outcome.plan.settled:
        search = search_report(grid, ResultStore(folder.work))
        write_json(folder.search, search)
    outputs = None
    if outcome.results:
        outputs = write_outputs(folder.path, grid, outcome.results, work=folder.work, latex=latex, csv=csv)
    return Written(folder, outcome, search, outputs)


def _require_no_loss(folder: BenchFolder, outcome: BenchOutcome) -> None:
    """Refuse to write over lines of other jobs that cannot be made again from their folders."""
    others = kept_results(folder).keys() - {result.job for result in outcome.results}
    gone = [job for job in others if not RunFolder(folder.work / job).result.exists()]
    if outcome.results and gone:
        raise UsageError(
            f"{folder.results} holds {len(gone)} results of jobs that this grid does not have and whose "
            f"folders are not in {folder.work}; they would be lost: take another --out, or delete that file"
        )


def _choice(cell: dict[str, Any]) -> str:
    """Say what a search chose."""
    if cell["chosen"] is None:
        return "every trial failed"
    best = next(trial for trial in cell["trials"] if trial["trial"] == cell["chosen"])
    options = {**best["options"]}
    drawn = {
        **{key: value for key, value in options.items() if key != "settings"},
        **options.get("settings", {}),
    }
    listed = ", ".join(f"{key} {value}" for key, value in drawn.items()) or "as it is"
    return f"trial {cell['chosen']} of {len(cell['trials'])} ({listed}), {cell['rule']} {best['score']:.3f}"
