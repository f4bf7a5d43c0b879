"""Accuracy on the held-out domains as text: one sheet per selection rule, and all rules side by side."""

from __future__ import annotations

from collections.abc import Sequence

from unseen.bench.statistics import LEVEL
from unseen.bench.study import display_name
from unseen.bench.tables.results_table import ResultsTable, TableCell, TableRow
from unseen.bench.tables.sheet import Line, Sheet, Text, estimate_text, unit_text
from unseen.evaluation.selection import SELECTION_RULES, rule_label
from unseen.report.formatting import NOTHING

MARKS = {"better": "*", "worse": "†", "": ""}
PUBLISHED = " (published)"
WEIGHTS = "weights"
WEIGHTS_NOTE = (
    "Weights of the clients in the average: by their number of samples, or uniform; rows with different ones "
    "differ in more than the method."
)


def table_sheet(table: ResultsTable) -> Sheet:
    """Format the table of one selection rule; with a column of runs if some are missing."""
    weights = [WEIGHTS] if table.names_weights else []
    headers = ["method", *weights, *table.columns, "mean", *([] if table.complete else ["runs"])]
    groups = [("", tuple(_line(row, table) for row in table.rows))]
    found = table.published
    if found is not None and found.rows:
        chosen = f"; round chosen by: {published_rule(found.selection)}" if found.selection else ""
        groups.append(
            (f"published in {found.source}{chosen}", tuple(_published_line(row, table) for row in found.rows))
        )
    model = f", {table.model}" if table.model else ""
    title = f"Held-out {unit_text(table.metric)}{model}, by {rule_label(table.rule)}"
    return Sheet(title, tuple(headers), tuple(groups), _note(table))


def rules_sheet(tables: Sequence[ResultsTable]) -> Sheet:
    """Format the mean over the held-out domains under all selection rules, side by side."""
    first = tables[0]
    lines = tuple(
        (
            *_first_cells(row, first),
            *(_cell(table.rows[place].mean, table, planned=table.planned) for table in tables),
        )
        for place, row in enumerate(first.rows)
    )
    model = f", {first.model}" if first.model else ""
    note = " ".join(rule_sentence(table.rule) for table in tables)
    return Sheet(
        f"Mean held-out {unit_text(first.metric)}{model}, by every selection rule",
        (
            "method",
            *([WEIGHTS] if first.names_weights else []),
            *(rule_label(table.rule) for table in tables),
        ),
        (("", lines),),
        note,
    )


def _line(row: TableRow, table: ResultsTable) -> Line:
    cells = [_cell(cell, table, planned=seeds) for cell, seeds in zip(row.cells, table.seeds, strict=True)]
    runs = [] if table.complete else [Text(f"{row.runs} of {table.planned}")]
    return (*_first_cells(row, table), *cells, _cell(row.mean, table, planned=0), *runs)


def _published_line(row: TableRow, table: ResultsTable) -> Line:
    cells = [
        Text(estimate_text(cell.estimate, table.metric, decimals=row.decimals))
        for cell in (*row.cells, row.mean)
    ]
    name, *weights = _first_cells(row, table)
    return (Text(name.text + PUBLISHED), *weights, *cells, *([] if table.complete else [Text(NOTHING)]))


def _first_cells(row: TableRow, table: ResultsTable) -> Line:
    """Return the first cells of a line: the method, and its clients' weights where the table has them."""
    return (Text(row.name), *([Text(row.weights or NOTHING)] if table.names_weights else []))


def _cell(cell: TableCell, table: ResultsTable, *, planned: int) -> Text:
    mark = MARKS[cell.verdict] if cell.estimate else ""
    return Text(estimate_text(cell.estimate, table.metric, planned=planned) + mark, bold=cell.best)


def _note(table: ResultsTable) -> str:
    parts = [rule_sentence(table.rule)]
    most = max(table.seeds, default=0)
    if most > 1:
        parts.append(
            f"Mean ± standard error over {most} seeds{_exceptions(table)}; bold: best of ours in its column."
        )
    elif len(table.rows) > 1:
        parts.append("One seed, so there is no error; bold: best of ours in its column.")
    if table.baseline and any(row.mean.verdict for row in table.rows):
        name = display_name(table.baseline)
        parts.append(
            f"{MARKS['better']} significantly better, {MARKS['worse']} significantly worse than {name} "
            f"(paired t-test over domains and seeds, Holm, p < {LEVEL:g})."
        )
    if table.names_weights:
        parts.append(WEIGHTS_NOTE)
    if not table.complete:
        parts.append(
            "Runs are missing: a number in brackets says how many a cell has, and only cells with the most "
            "of their column can be bold."
        )
    if table.published and table.published.note:
        parts.append(table.published.note)
    return " ".join(parts)


def _exceptions(table: ResultsTable) -> str:
    """Name the columns with fewer seeds than the others; no mean over all columns has an error then."""
    fewer: dict[int, list[str]] = {}
    for column, seeds in zip(table.columns, table.seeds, strict=True):
        fewer.setdefault(seeds, []).append(column)
    fewer.pop(max(table.seeds))
    return "".join(f", {seeds} at {', '.join(columns)}" for seeds, columns in fewer.items())


def rule_sentence(rule: str) -> str:
    """Explain a selection rule."""
    return f"{rule_label(rule).capitalize()}: {SELECTION_RULES[rule].summary}."


def published_rule(selection: str) -> str:
    """Return how a paper chose its round: a rule's label, or what the paper says."""
    return "nothing, or one round" if selection == "none" else rule_label(selection)
