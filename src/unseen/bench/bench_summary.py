"""Summary of a bench, computed from its results: tables, tests and sentences per model and rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unseen.bench.comparisons import PairwiseComparison, compare_with_baseline
from unseen.bench.grid import Grid
from unseen.bench.papers.published_tables import PublishedRow, PublishedTable, load_published
from unseen.bench.results import JobResult
from unseen.bench.statistics import Estimate
from unseen.bench.study import Study, studies
from unseen.bench.tables.comparison_sheets import statistics_sheet
from unseen.bench.tables.cost_sheets import cost_sheet
from unseen.bench.tables.result_sheets import published_rule, rules_sheet, table_sheet
from unseen.bench.tables.results_table import (
    PublishedRows,
    ResultsTable,
    TableCell,
    TableRow,
    best_row,
    make_table,
)
from unseen.bench.tables.sheet import Sheet, Text
from unseen.bench.tables.validation_sheet import validation_sheet
from unseen.evaluation.selection import SourceValidation
from unseen.report.formatting import NOTHING, format_value

USUAL_BASELINE = "fedavg"


@dataclass(frozen=True)
class ModelSummary:
    """One model: a table and the comparisons of every selection rule, source validation first.

    validation  validation domains and worst groups, where runs have them
    """

    study: Study
    tables: tuple[ResultsTable, ...]
    against: dict[str, list[PairwiseComparison]]
    validation: Sheet | None = None

    @property
    def honest(self) -> ResultsTable:
        """The table of the first rule."""
        return self.tables[0]

    @property
    def table_sheets(self) -> dict[str, Sheet]:
        """The tables as text, by rule."""
        return {table.rule: table_sheet(table) for table in self.tables}

    @property
    def rules_sheets(self) -> list[Sheet]:
        """All rules side by side, then validation domains and worst groups where runs have them."""
        return [rules_sheet(self.tables), *([self.validation] if self.validation else [])]

    @property
    def statistics_sheets(self) -> dict[str, Sheet]:
        """The tests as text, by rule; empty without a baseline or a second method."""
        return {
            rule: statistics_sheet(self.study, rule, found) for rule, found in self.against.items() if found
        }


@dataclass(frozen=True)
class BenchSummary:
    """A bench as tables and sentences.

    printed  the published table as printed, where it fits no model's columns
    """

    grid: Grid
    baseline: str | None
    models: tuple[ModelSummary, ...]
    printed: Sheet | None = None

    @property
    def planned(self) -> int:
        """Number of runs in the grid."""
        return sum(each.study.planned * len(each.study.labels) for each in self.models)

    @property
    def finished(self) -> int:
        """Number of finished runs."""
        return sum(len(each.study.results) for each in self.models)

    @property
    def headline(self) -> str:
        """The bench in one sentence: the best method against the baseline, or the best method alone."""
        first = self.models[0]
        table, best = first.honest, best_row(first.honest)
        against = {each.ours: each for found in list(first.against.values())[:1] for each in found}
        if best is not None and best.label in against:
            return against[best.label].words
        if best is not None and best.mean.estimate is not None:
            value = format_value(best.mean.estimate.mean, table.metric)
            name = f"{best.name}, the baseline," if best.label == self.baseline else best.name
            return f"{name} has the highest mean: {value} over {len(table.columns)} held-out domains"
        return f"{len(table.rows)} methods on {len(table.columns)} held-out domains"

    @property
    def sentences(self) -> list[str]:
        """Every method against the baseline in words, under the first rule; models are named if several."""
        return [
            (f"{each.study.model}: " if each.study.several else "") + found.words
            for each in self.models
            for found in each.against.get(each.honest.rule, [])
        ]

    @property
    def sheets(self) -> list[Sheet]:
        """All tables as text, in the order of the files."""
        found: list[Sheet] = []
        for each in self.models:
            found += [*each.table_sheets.values(), *each.rules_sheets, *each.statistics_sheets.values()]
            if any(result.transfers is not None for result in each.study.results):
                found.append(cost_sheet(each.study))
        return [*found, *([self.printed] if self.printed else [])]


def summarize_bench(grid: Grid, results: Sequence[JobResult], *, baseline: str | None = None) -> BenchSummary:
    """Compute all tables and comparisons; the default baseline is FedAvg, or else the first label."""
    chosen = baseline or grid.baseline or _usual(grid)
    models = []
    for study in studies(grid, results):
        rules = study.rules or (SourceValidation.name,)
        beside = published_rows(grid.published, study) if grid.published else None
        against = {rule: compare_with_baseline(study, rule, chosen) for rule in rules} if chosen else {}
        tables = tuple(make_table(study, rule, baseline=chosen, published=beside) for rule in rules)
        models.append(
            ModelSummary(
                study,
                tables,
                {rule: found for rule, found in against.items() if found},
                validation_sheet(study, _with_same_metric(grid.published, study)),
            )
        )
    fits = any(each.honest.published for each in models)
    printed = published_sheet(grid.published) if grid.published and not fits else None
    return BenchSummary(grid, chosen, tuple(models), printed)


def _usual(grid: Grid) -> str | None:
    if len(grid.methods) < 2:
        return None
    return USUAL_BASELINE if USUAL_BASELINE in grid.methods else next(iter(grid.methods))


METRICS = {"accuracy": "accuracy", "pearson": "pearson_r"}
"""Published metrics that can be compared with ours, and our names for them."""


def published_rows(name: str, study: Study) -> PublishedRows | None:
    """Return a published table's rows under the study's held-out domains; None if none fits.

    The printed average is kept only where the columns are the same: over fewer domains it would mislead.
    """
    found = load_published(name)
    if METRICS.get(found.metric) != study.metric or not set(found.columns) & set(study.domains):
        return None
    rows = [_row(row, found, study) for row in found.rows.values() if _same_model(row, found, study)]
    if not rows:
        return None
    note = f"Printed numbers: {found.runs}." if found.runs else ""
    return PublishedRows(
        source=source_text(found),
        rows=tuple(rows),
        selection=found.selection,
        note=" ".join(filter(None, [note, found.note])),
    )


def _with_same_metric(name: str | None, study: Study) -> PublishedTable | None:
    """Return a published table if its metric is the study's."""
    found = load_published(name) if name else None
    return found if found and METRICS.get(found.metric) == study.metric else None


def published_sheet(name: str) -> Sheet | None:
    """Format a published table as printed, for columns that are not ours; None if it has no row."""
    found = load_published(name)
    if not found.rows:
        return None
    headers = ("method", *found.headings, *([found.average] if found.average else []))
    lines = []
    for row in found.rows.values():
        values = [*row.values, *([row.average] if found.average else [])]
        errors = [*(row.errors or (None,) * len(row.values)), row.average_error]
        cells = [_format_printed(*both, row.decimals) for both in zip(values, errors, strict=False)]
        lines.append((Text(row.label), *map(Text, cells)))
    unit = {"percent": " in %", "hours": " in hours"}.get(found.unit, "")
    chosen = f"Round chosen by: {published_rule(found.selection)}."
    title = f"Published: {found.caption} ({found.metric}{unit})"
    group = (f"published in {source_text(found)}", tuple(lines))
    return Sheet(title, headers, (group,), " ".join(filter(None, [chosen, found.note])))


def source_text(found: PublishedTable) -> str:
    """Name the table and its paper."""
    paper, year = found.paper.name, str(found.paper.year)
    return f"{paper if year in paper else f'{paper} {year}'}, {found.table[:1].lower()}{found.table[1:]}"


def _row(row: PublishedRow, found: PublishedTable, study: Study) -> TableRow:
    errors = row.errors or (None,) * len(row.values)
    known = {
        column: _cell(value, error, found.scale)
        for column, value, error in zip(found.columns, row.values, errors, strict=True)
    }
    whole = set(found.columns) == set(study.domains)
    mean = _cell(row.average, row.average_error, found.scale) if whole else TableCell()
    cells = tuple(known.get(domain, TableCell()) for domain in study.domains)
    return TableRow(row.label, row.label, cells, mean, decimals=row.decimals)


def _same_model(row: PublishedRow, found: PublishedTable, study: Study) -> bool:
    """Return whether a row belongs to the study's model, as far as both are known."""
    printed = row.model or found.model
    return not (study.model and printed) or printed == study.model


def _cell(value: float | None, error: float | None, scale: float) -> TableCell:
    if value is None:
        return TableCell()
    return TableCell(Estimate(value / scale, None if error is None else error / scale, 1))


def _format_printed(value: float | None, error: float | None, decimals: int) -> str:
    if value is None:
        return NOTHING
    return f"{value:.{decimals}f}" + ("" if error is None else f" ± {error:.{decimals}f}")
