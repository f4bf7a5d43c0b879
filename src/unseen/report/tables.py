"""Results of runs as a table, one row a run: in the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unseen.report.wording import duration, method_name, metric_name, number, size

if TYPE_CHECKING:
    from rich.table import Table

TEXT_COLUMNS = 2
_SELECTED = {"source-validation": "by validation", "last": "last round", "oracle": "oracle"}


def result_rows(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headers and one row a run: the number by the run's own selection rule before oracle and last."""
    rules = {_SELECTED.get(str(result.get("selection")), "as selected") for result in results}
    metrics = {headline_metric(result) for result in results}
    measure = metric_name(metrics.pop()) if len(metrics) == 1 else "target"
    rule = rules.pop() if len(rules) == 1 else "as selected"
    headers = [
        "method",
        "held out",
        f"{measure} ({rule})",
        "oracle",
        "last",
        "source validation",
        "in-domain",
    ]
    return [*headers, "rounds", "time", "sent"], [_row(result) for result in results]


def headline_metric(result: dict[str, Any]) -> str:
    """The metric a result is judged by."""
    return "rmse" if result.get("task") == "regression" else "accuracy"


def result_table(results: Sequence[dict[str, Any]]) -> Table:
    """The table that `unseen train` and `unseen demo` print."""
    from rich.table import Table
    from rich.text import Text

    headers, rows = result_rows(results)
    table = Table(header_style="bold", pad_edge=False)
    for position, header in enumerate(headers):
        table.add_column(header, justify="left" if position < TEXT_COLUMNS else "right")
    for row in rows:
        cells = [
            Text(cell, style="bold" if position == TEXT_COLUMNS else "") for position, cell in enumerate(row)
        ]
        table.add_row(*cells)
    return table


def to_markdown(results: Sequence[dict[str, Any]]) -> str:
    """The same table as Markdown."""
    headers, rows = result_rows(results)
    ruler = [":--" if position < TEXT_COLUMNS else "--:" for position in range(len(headers))]
    return "\n".join(_line(cells) for cells in [headers, ruler, *rows]) + "\n"


def _row(result: dict[str, Any]) -> list[str]:
    metric, metrics = headline_metric(result), result.get("metrics") or {}
    held_out = result.get("held_out") or []
    keys = ("target", "target_oracle", "target_last", "source_validation", "in_domain")
    return [
        method_name(result.get("method", "")),
        held_out if isinstance(held_out, str) else ", ".join(map(str, held_out)) or "none",
        *(number((metrics.get(key) or {}).get(metric), metric) for key in keys),
        str(result.get("rounds", "")),
        duration(result.get("seconds")),
        size(result.get("bytes_up")),
    ]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return "| " + " | ".join(escaped) + " |"
