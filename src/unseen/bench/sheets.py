"""Tables as text: what stands in every cell, the same for terminal, Markdown, LaTeX and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unseen.bench.statistics import LEVEL, Estimate
from unseen.bench.study import RULE_MEANINGS, RULES, display_name
from unseen.bench.tables import Cell, Row, Table
from unseen.report.wording import NOTHING, is_share, metric_name

MARKS = {"better": "*", "worse": "†", "": ""}
PUBLISHED = " (published)"
RULE_WORDS = {**RULES, "none": "nothing, or one round"}
"""How rounds are chosen, our rules and those that papers have besides."""


@dataclass(frozen=True)
class Text:
    """A cell's words, and whether they are set off."""

    text: str
    bold: bool = False


Line = tuple[Text, ...]


@dataclass(frozen=True)
class Sheet:
    """Headers and groups of lines, each with a heading ("" for none); columns but the first are numbers."""

    title: str
    headers: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]
    note: str = ""


def number_text(value: float | None, metric: str, decimals: int | None = None) -> str:
    """A number of a table whose title names the unit: percent with one decimal, else three decimals."""
    if value is None:
        return NOTHING
    if is_share(metric):
        return f"{100 * value:.{1 if decimals is None else decimals}f}"
    return f"{value:.{3 if decimals is None else decimals}f}"


def estimate_text(
    estimate: Estimate | None, metric: str, *, planned: int = 0, decimals: int | None = None
) -> str:
    """Mean ± standard error, and the number of runs in brackets where some are missing."""
    if estimate is None:
        return NOTHING
    error = f" ± {number_text(estimate.error, metric, decimals)}" if estimate.error is not None else ""
    runs = f" ({estimate.count})" if estimate.count < planned else ""
    return number_text(estimate.mean, metric, decimals) + error + runs


def unit_text(metric: str) -> str:
    """The metric and its unit, for titles."""
    return f"{metric_name(metric)} in %" if is_share(metric) else metric_name(metric)


def rule_sentence(rule: str) -> str:
    """What a selection rule means."""
    return f"{RULES[rule].capitalize()}: {RULE_MEANINGS[rule]}."


def table_sheet(table: Table) -> Sheet:
    """The bench's table under one selection rule; a column of runs only where some are missing."""
    headers = ["method", *table.columns, "mean", *([] if table.complete else ["runs"])]
    groups = [("", tuple(_line(row, table) for row in table.rows))]
    found = table.published
    if found is not None and found.rows:
        chosen = (
            f"; round chosen by: {RULE_WORDS.get(found.selection, found.selection)}"
            if found.selection
            else ""
        )
        groups.append(
            (f"published in {found.source}{chosen}", tuple(_published(row, table) for row in found.rows))
        )
    model = f", {table.model}" if table.model else ""
    title = f"Held-out {unit_text(table.metric)}{model}, by {RULES[table.rule]}"
    return Sheet(title, tuple(headers), tuple(groups), _note(table))


def rules_sheet(tables: Sequence[Table]) -> Sheet:
    """The mean over the held-out domains under all selection rules, side by side."""
    first = tables[0]
    lines = tuple(
        (Text(row.name), *(_cell(table.rows[place].mean, table, planned=table.planned) for table in tables))
        for place, row in enumerate(first.rows)
    )
    model = f", {first.model}" if first.model else ""
    note = " ".join(rule_sentence(table.rule) for table in tables)
    return Sheet(
        f"Mean held-out {unit_text(first.metric)}{model}, by every selection rule",
        ("method", *(RULES[table.rule] for table in tables)),
        (("", lines),),
        note,
    )


def _line(row: Row, table: Table) -> Line:
    cells = [_cell(cell, table, planned=table.seeds) for cell in row.cells]
    runs = [] if table.complete else [Text(f"{row.runs} of {table.planned}")]
    return (Text(row.name), *cells, _cell(row.mean, table, planned=0), *runs)


def _published(row: Row, table: Table) -> Line:
    cells = [
        Text(estimate_text(cell.estimate, table.metric, decimals=row.decimals))
        for cell in (*row.cells, row.mean)
    ]
    return (Text(row.name + PUBLISHED), *cells, *([] if table.complete else [Text(NOTHING)]))


def _cell(cell: Cell, table: Table, *, planned: int) -> Text:
    mark = MARKS[cell.verdict] if cell.estimate else ""
    return Text(estimate_text(cell.estimate, table.metric, planned=planned) + mark, bold=cell.best)


def _note(table: Table) -> str:
    parts = [rule_sentence(table.rule)]
    if table.seeds > 1:
        parts.append(f"Mean ± standard error over {table.seeds} seeds; bold: best of ours in its column.")
    elif len(table.rows) > 1:
        parts.append("One seed, so there is no error; bold: best of ours in its column.")
    if table.baseline and any(row.mean.verdict for row in table.rows):
        name = display_name(table.baseline)
        parts.append(
            f"{MARKS['better']} significantly better, {MARKS['worse']} significantly worse than {name} "
            f"(paired t-test over domains and seeds, Holm, p < {LEVEL:g})."
        )
    if not table.complete:
        parts.append(
            "Runs are missing: a number in brackets says how many a cell has, and only cells with the most "
            "of their column can be bold."
        )
    if table.published and table.published.note:
        parts.append(table.published.note)
    return " ".join(parts)
