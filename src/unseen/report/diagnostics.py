"""Numbers that a method recorded about itself, drawn by their shape.

A number per round becomes a line, numbers by client or a short list a line per entry (for many clients their
mean), a long list the bars of the last round, a matrix the heat map of the last round. What a separate figure
shows is left out.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from unseen.report.charts import bar_chart, heat_map, line_chart
from unseen.report.curves import MOST_LINES, curve_chart
from unseen.report.formatting import is_matrix, is_number
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

MOST_SIDE = 60
SHOWN_ELSEWHERE = ("layer_weights",)


def diagnostics(run: Run) -> Panels:
    """Draw one panel per diagnostic, in the order of first appearance."""
    records = [record for record in run.rounds if record.get("diagnostics")]
    recorded = dict.fromkeys(name for record in records for name in record["diagnostics"])
    names = [name for name in recorded if name not in SHOWN_ELSEWHERE]
    panels: Panels = {}
    for name in names:
        having = [record for record in records if record["diagnostics"].get(name) is not None]
        drawn = _draw(name, having) if having else None
        if drawn:
            panels[drawn[0]] = drawn[1]
    return panels


def _draw(name: str, records: list[dict[str, Any]]) -> tuple[str, AnyChart] | None:
    last = records[-1]
    value = last["diagnostics"][name]
    shown = name.replace("_", " ")
    if is_number(value):
        points = [(record["round"], record["diagnostics"][name]) for record in records]
        return shown, line_chart([point for point in points if is_number(point[1])], label=shown)
    if isinstance(value, dict) and any(map(is_number, value.values())):
        return shown, _client_lines(name, records)
    if is_matrix(value):
        return f"{shown}, round {last['round']}", _matrix(value, last)
    if isinstance(value, list) and any(map(is_number, value)):
        if len(value) <= MOST_LINES and len(records) > 1:
            return shown, _lines(name, records)
        return f"{shown}, round {last['round']}", _bars(value, last)
    return None


def _labels(length: int, record: dict[str, Any]) -> list[str]:
    clients = [str(name) for name in record.get("clients") or []]
    distinct = len(clients) == length and len(set(clients)) == length
    return clients if distinct else [str(i + 1) for i in range(length)]


def _lines(name: str, records: list[dict[str, Any]]) -> AnyChart:
    rows = [
        {"round": record["round"], "series": label, "role": "entry", "value": value}
        for record in records
        if isinstance(record["diagnostics"][name], list)
        for label, value in zip(
            _labels(len(record["diagnostics"][name]), record), record["diagnostics"][name], strict=True
        )
        if is_number(value)
    ]
    chart = curve_chart(rows, metric=name.replace("_", " "), selected=None)
    return chart.properties(height=200)


def _client_lines(name: str, records: list[dict[str, Any]]) -> AnyChart:
    found = [
        (record["round"], {client: value for client, value in entries.items() if is_number(value)})
        for record in records
        if isinstance(entries := record["diagnostics"][name], dict)
    ]
    if len({client for _, values in found for client in values}) > MOST_LINES:
        found = [
            (number, {"mean of the clients": fmean(values.values())}) for number, values in found if values
        ]
    rows = [
        {"round": number, "series": client, "role": "entry", "value": value}
        for number, values in found
        for client, value in values.items()
    ]
    return curve_chart(rows, metric=name.replace("_", " "), selected=None).properties(height=200)


def _bars(values: list[Any], record: dict[str, Any]) -> AnyChart:
    labels = _labels(len(values), record)[:MOST_SIDE]
    pairs = zip(labels, values, strict=False)
    rows: list[dict[str, Any]] = [
        {"name": label, "value": value} for label, value in pairs if is_number(value)
    ]
    return bar_chart(rows, order=[row["name"] for row in rows], title="value", form=".3~r")


def _matrix(matrix: list[list[Any]], record: dict[str, Any]) -> AnyChart:
    down = _labels(len(matrix), record)[:MOST_SIDE]
    across = _labels(len(matrix[0]), record)[:MOST_SIDE]
    cells = [
        (row_name, column_name, value)
        for row_name, row in zip(down, matrix, strict=False)
        for column_name, value in zip(across, row, strict=False)
        if is_number(value)
    ]
    signed = min(cell[2] for cell in cells) < 0
    rows = [
        {"down": row_name, "across": column_name, "value": value} | {"text": f"{value:.2g}"}
        for row_name, column_name, value in cells
    ]
    tooltip = [("down:N", "row", ""), ("across:N", "column", ""), ("value:Q", "value", ".4~r")]
    return heat_map(rows, across=across, down=down, titles=(None, None), tooltip=tooltip, signed=signed)
