"""Published results next to ours: a paper's rows under our columns where they fit, else as printed."""

from __future__ import annotations

from unseen.bench.bench_tables import PublishedRows, TableCell, TableRow
from unseen.bench.papers.published_tables import PublishedRow, PublishedTable, load_published
from unseen.bench.statistics import Estimate
from unseen.bench.study import Study
from unseen.bench.table_text import Sheet, Text, published_rule
from unseen.report.formatting import NOTHING

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


def published_sheet(name: str) -> Sheet | None:
    """Format a published table as printed, for columns that are not ours; None if we have no row of it."""
    found = load_published(name)
    if not found.rows:
        return None
    headers = ("method", *found.headings, *([found.average] if found.average else []))
    lines = []
    for row in found.rows.values():
        values = [*row.values, *([row.average] if found.average else [])]
        errors = [*(row.errors or (None,) * len(row.values)), row.average_error]
        cells = [_printed(*both, row.decimals) for both in zip(values, errors, strict=False)]
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


def _printed(value: float | None, error: float | None, decimals: int) -> str:
    if value is None:
        return NOTHING
    return f"{value:.{decimals}f}" + ("" if error is None else f" ± {error:.{decimals}f}")
