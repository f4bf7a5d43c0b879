"""The numbers of all tables as one CSV file, one line a cell: for spreadsheets and other people's scripts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from unseen.bench.tables import Cell, Row, Table

FIELDS = (
    "published", "model", "selection", "method", "held_out", "metric",
    "mean", "standard_error", "runs", "verdict",
)  # fmt: skip


def to_csv(tables: Sequence[Table]) -> str:
    """All tables; `held_out` is "mean" for the mean over domains; values are fractions, empty where unknown.

    Published lines appear once, with the paper's own selection rule.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for table in tables:
        for row in table.rows:
            writer.writerows(_lines(row, table, selection=table.rule, published=""))
    shown = set()
    for table in tables:
        found = table.published
        if found is not None and (table.model, found.source) not in shown:
            shown.add((table.model, found.source))
            for row in found.rows:
                writer.writerows(_lines(row, table, selection=found.selection, published=found.source))
    return text.getvalue()


def _lines(row: Row, table: Table, *, selection: str, published: str) -> Iterator[list[str]]:
    for column, cell in [*zip(table.columns, row.cells, strict=True), ("mean", row.mean)]:
        place = [published, table.model, selection, row.label, column, table.metric]
        yield [*place, *_numbers(cell, bool(published))]


def _numbers(cell: Cell, published: bool) -> list[str]:
    found = cell.estimate
    if found is None:
        return ["", "", "" if published else "0", cell.verdict]
    error = "" if found.error is None else f"{found.error:.6g}"
    return [f"{found.mean:.6g}", error, "" if published else str(found.count), cell.verdict]
