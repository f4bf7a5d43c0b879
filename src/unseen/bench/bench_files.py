"""Write the outputs of a bench (page, Markdown, LaTeX, CSV, figures) from its results alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.bench.bench_figures import FigureContext, draw_bench
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_page import bench_page
from unseen.bench.bench_result import load_bench
from unseen.bench.bench_summary import BenchSummary, summarize_bench
from unseen.bench.grid import Grid
from unseen.bench.result_store import ResultStore
from unseen.bench.results import JobResult, kept_results, write_results
from unseen.bench.runner import BenchOutcome
from unseen.bench.search import search_report
from unseen.bench.tables.render import latex_file, to_csv, to_markdown
from unseen.bench.tables.sheet import Sheet
from unseen.errors import UsageError, unknown_name
from unseen.fileio import write_json, write_text
from unseen.report.png import write_panels
from unseen.runs.folder import RunFolder


@dataclass(frozen=True)
class Outputs:
    """The written files, and their content for the terminal or `--json`.

    sheets     the tables for the terminal: the honest rule, all rules side by side, the tests
    sentences  every method against the baseline, in words
    """

    page: Path
    markdown: Path
    latex: Path
    csv: Path
    sheets: tuple[Sheet, ...]
    sentences: tuple[str, ...]
    overview: BenchSummary

    @property
    def values(self) -> dict[str, Any]:
        """The result for `--json`: paths, sentences, and the mean of every method under every rule."""
        paths = {name: str(getattr(self, name)) for name in ("page", "markdown", "latex", "csv")}
        means = [
            {
                "model": each.study.model,
                "method": row.label,
                "weights": row.weights or None,
                "selection": table.rule,
                "metric": table.metric,
                "mean": row.mean.estimate.mean if row.mean.estimate else None,
                "standard_error": row.mean.estimate.error if row.mean.estimate else None,
                "runs": row.runs,
                "planned": table.planned,
                "verdict": row.mean.verdict or None,
            }
            for each in self.overview.models
            for table in each.tables
            for row in table.rows
        ]
        return {
            **paths,
            "baseline": self.overview.baseline,
            "sentences": list(self.sentences),
            "means": means,
        }


def write_outputs(
    folder: Path,
    grid: Grid,
    results: Sequence[JobResult],
    *,
    baseline: str | None = None,
    work: Path | None = None,
    latex: Path | None = None,
    csv: Path | None = None,
) -> Outputs:
    """Write report.html, table.md, table.tex and table.csv into a bench folder; all can be rewritten.

    baseline    label to compare with; the grid's, or FedAvg, if not given
    work        the folder of the job folders, for links to their reports
    latex, csv  other paths for these two files
    """
    if baseline is not None and baseline not in grid.methods:
        raise unknown_name("baseline", baseline, grid.methods)
    overview = summarize_bench(grid, results, baseline=baseline)
    page, markdown = folder / "report.html", folder / "table.md"
    latex, csv = latex or folder / "table.tex", csv or folder / "table.csv"
    write_text(page, bench_page(overview, folder=folder, work=work or folder / "jobs"))
    write_text(markdown, markdown_file(overview))
    write_text(latex, latex_file(overview.sheets))
    write_text(csv, to_csv([table for each in overview.models for table in each.tables]))
    shown: list[Sheet] = []
    for each in overview.models:
        first = each.honest.rule
        tests = [each.statistics_sheets[first]] if first in each.statistics_sheets else []
        shown += [each.table_sheets[first], *each.rules_sheets, *tests]
    return Outputs(page, markdown, latex, csv, tuple(shown), tuple(overview.sentences), overview)


def write_finished(
    grid: Grid,
    folder: BenchFolder,
    outcome: BenchOutcome,
    *,
    latex: Path | None = None,
    csv: Path | None = None,
) -> tuple[Outputs | None, list[dict[str, Any]]]:
    """Write results and outputs of the finished jobs, None without any; return also what a search chose."""
    _require_no_loss(folder, outcome)
    if outcome.results or not folder.results.exists():
        write_results(folder.results, outcome.results)
    search: list[dict[str, Any]] = []
    if grid.search and outcome.plan.settled:
        search = search_report(grid, ResultStore(folder.work))
        write_json(folder.search, search)
    if not outcome.results:
        return None, search
    return write_outputs(
        folder.path, grid, outcome.results, work=folder.work, latex=latex, csv=csv
    ), search  # fmt: skip


def _require_no_loss(folder: BenchFolder, outcome: BenchOutcome) -> None:
    """Refuse to overwrite results of other jobs that cannot be recomputed from their folders."""
    others = kept_results(folder).keys() - {result.job for result in outcome.results}
    gone = [job for job in others if not RunFolder(folder.work / job).result.exists()]
    if outcome.results and gone:
        raise UsageError(
            f"{folder.results} contains {len(gone)} results of jobs that this grid does not have and whose "
            f"folders are not in {folder.work}; they would be lost: choose another --out, or delete that file"
        )


def rewrite_bench(folder: Path, *, figures: Path | None = None) -> tuple[Outputs, list[Path]]:
    """Rewrite a bench folder's outputs from its grid and results, without its jobs or its data.

    figures  also write every figure as a PNG image into this folder
    """
    found = load_bench(folder)
    drawn = write_bench_figures(found.grid, found.results, figures) if figures else []
    return write_outputs(folder, found.grid, found.results), drawn


def write_bench_figures(
    grid: Grid, results: Sequence[JobResult], out_dir: Path, *, baseline: str | None = None
) -> list[Path]:
    """Write every panel of a bench's figures as a PNG file; return the files."""
    overview, written = summarize_bench(grid, results, baseline=baseline), []
    for each in overview.models:
        place = out_dir / each.study.model.replace("/", "_") if each.study.several else out_dir
        shown = FigureContext(grid, each.study, each.honest.rule, overview.baseline)
        written += write_panels(draw_bench(shown), place)
    return written


def markdown_file(overview: BenchSummary) -> str:
    """Render title, note, sentences and all tables as one Markdown document."""
    grid = overview.grid
    sentences = "\n".join(f"- {words}." for words in overview.sentences)
    parts = [f"# {grid.title or overview.headline}", grid.note.strip(), sentences]
    return (
        "\n\n".join(
            part for part in (*parts, *(to_markdown(sheet).rstrip() for sheet in overview.sheets)) if part
        )
        + "\n"
    )
