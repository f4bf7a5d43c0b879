"""The offline page of a bench: one headline, then tables, comparisons, figures and runs.

This module collects what `templates/bench.html.j2` shows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from unseen.bench.bench_figures import BENCH_FIGURES, FigureContext, draw_bench
from unseen.bench.bench_summary import BenchSummary, ModelSummary
from unseen.bench.grid import Grid
from unseen.bench.statistics import expectation_sentence, expected_accuracy
from unseen.bench.study import Study, display_name
from unseen.bench.tables.comparison_sheets import matrix_sheet
from unseen.bench.tables.cost_sheets import cost_sheet, expectation_sheet
from unseen.bench.tables.render import to_latex
from unseen.bench.tables.results_table import ResultsTable, best_row
from unseen.bench.tables.sheet import Sheet
from unseen.evaluation.selection import rule_label
from unseen.report.formatting import NOTHING, format_bytes, format_count, format_duration, format_value
from unseen.report.page import FigurePlace, Tile, place_figures, render_page
from unseen.runs.folder import RunFolder

FoldedSheet = tuple[str, Sheet]
"""A sheet that is hidden until its summary is clicked."""


class ComparisonPart(NamedTuple):
    """Comparisons with the baseline under the first rule; `others` are those of the other rules."""

    title: str
    sentences: list[str]
    sheet: Sheet
    others: list[FoldedSheet]


class ExpectationPart(NamedTuple):
    """The accuracy to expect on a new site: of the best method in words, of all methods as a table."""

    sentence: str
    sheet: Sheet


class RunRow(NamedTuple):
    """One run: its method, the address of its report (empty if there is none), and its other cells."""

    method: str
    link: str
    cells: list[str]


class RunsPart(NamedTuple):
    """A table of all runs."""

    summary: str
    headers: list[str]
    rows: list[RunRow]


class ModelPart(NamedTuple):
    """What the page shows for one model; None where there is nothing to show."""

    heading: str
    in_title: str
    tiles: list[Tile]
    results: list[Sheet]
    other_results: list[FoldedSheet]
    comparisons: ComparisonPart | None
    expectation: ExpectationPart | None
    figures: list[FigurePlace]
    more_tables: list[Sheet]
    runs: RunsPart | None


def bench_page(summary: BenchSummary, *, folder: Path, work: Path) -> str:
    """Render the page; links to the reports of runs (below `work`) are relative to `folder`."""
    grid = summary.grid
    models: list[ModelPart] = []
    charts: dict[str, Any] = {}
    for position, each in enumerate(summary.models):
        part, specs = _model_part(summary, each, f"{position}-", folder=folder, work=work)
        models.append(part)
        charts |= specs
    return render_page(
        "bench.html.j2",
        package="unseen.bench",
        title=grid.title or summary.headline,
        charts=charts,
        kind=f"Bench · {grid.title}" if grid.title else "Bench",
        headline=summary.headline,
        about=_about(grid),
        unfinished=_describe_unfinished(summary),
        note=[block.strip() for block in grid.note.split("\n\n") if block.strip()],
        models=models,
        published=summary.printed,
        toml=grid.to_toml(),
        command=f"unseen bench grid.toml --out {folder.name or 'bench'}",
        to_latex=to_latex,
    )


def _model_part(
    summary: BenchSummary, each: ModelSummary, prefix: str, *, folder: Path, work: Path
) -> tuple[ModelPart, dict[str, Any]]:
    study, (first, *others) = each.study, each.tables
    context = FigureContext(summary.grid, study, first.rule, summary.baseline)
    figures, charts = place_figures(BENCH_FIGURES, draw_bench(context), prefix=prefix)
    best = best_row(first)
    matrix = [matrix_sheet(study, first.rule)] if len(study.labels) > 1 else []
    part = ModelPart(
        heading=study.model if study.several else "",
        in_title=study.in_title,
        tiles=_tiles(study, first),
        results=[each.table_sheets[first.rule], *each.rules_sheets],
        other_results=[
            (f"The table by {rule_label(table.rule)}", each.table_sheets[table.rule]) for table in others
        ],
        comparisons=_comparison_part(each),
        expectation=_expectation_part(study, best.label if best else None),
        figures=figures,
        more_tables=[*matrix, cost_sheet(study)],
        runs=_runs_part(study, folder, work),
    )
    return part, charts


def _comparison_part(each: ModelSummary) -> ComparisonPart | None:
    found, sheets = each.against, each.statistics_sheets
    if not any(found.values()):
        return None
    first, *others = found
    return ComparisonPart(
        title=f"Against {display_name(found[first][0].baseline)}{each.study.in_title}",
        sentences=[f"{comparison.words}." for comparison in found[first]],
        sheet=sheets[first],
        others=[(f"The same by {rule_label(rule)}", sheets[rule]) for rule in others],
    )


def _expectation_part(study: Study, best: str | None) -> ExpectationPart | None:
    rule = study.rules[0] if study.rules else ""
    sheet = expectation_sheet(study, rule)
    if not any(lines for _, lines in sheet.groups):
        return None
    found = expected_accuracy(study.by_domain(best, rule), metric=study.metric) if best else None
    return ExpectationPart(expectation_sentence(found, display_name(best)) if found and best else "", sheet)


def _tiles(study: Study, table: ResultsTable) -> list[Tile]:
    """Return the key numbers: the best complete method, the number of runs, and their cost."""
    made: list[Tile] = []
    best = best_row(table)
    if best is not None and best.mean.estimate is not None:
        hint = f"mean over {len(table.columns)} held-out domains, round chosen by {rule_label(table.rule)}"
        value = format_value(best.mean.estimate.mean, table.metric)
        made.append(Tile(f"{best.name}, the highest mean", value, hint, hero=True))
    planned, done = table.planned * len(table.rows), len(study.results)
    missing = "all finished" if done >= planned else f"of {format_count(planned)} planned"
    seconds, sent = (sum(getattr(run, name) for run in study.results) for name in ("seconds", "bytes_up"))
    return [
        *made,
        Tile("runs", format_count(done), missing),
        Tile("training time", format_duration(seconds), "all runs together"),
        Tile("sent by clients", format_bytes(sent) if sent else NOTHING, "all runs together"),
    ]


def _runs_part(study: Study, folder: Path, work: Path) -> RunsPart | None:
    """List every run with its metrics, and a link to its report where there is one."""
    rows: list[RunRow] = []
    for result in sorted(
        study.results, key=lambda run: (study.labels.index(run.label), run.held_out, run.seed)
    ):
        report = RunFolder(work / result.job).report
        link = quote(Path(os.path.relpath(report, folder)).as_posix()) if report.is_file() else ""
        values = (format_value(result.accuracy.get(rule), study.metric) for rule in study.rules)
        cells = [result.held_out, *values, str(result.seed), format_duration(result.seconds)]
        rows.append(RunRow(display_name(result.label), link, cells))
    if not rows:
        return None
    headers = ["method", "held out", *(rule_label(rule) for rule in study.rules), "seed", "time"]
    summary = f"All {len(rows)} runs" + (f" of {study.model}" if study.several else "")
    return RunsPart(summary, headers, rows)


def _about(grid: Grid) -> Sequence[str]:
    seeds = f"{len(grid.seeds)} seeds" if len(grid.seeds) > 1 else f"seed {grid.seeds[0]}"
    model = ", ".join(grid.models) or str(grid.common.get("model") or "")
    return [Path(str(grid.common["data"])).name, model, f"{len(grid.methods)} methods", seeds]


def _describe_unfinished(summary: BenchSummary) -> str:
    done, planned = summary.finished, summary.planned
    if done >= planned:
        return ""
    return f"{done} of {planned} runs are finished. Tables show the results so far; numbers will change."
