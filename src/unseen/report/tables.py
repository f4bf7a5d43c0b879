"""Results of runs as a table, one row per run: in the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unseen.evaluation.selection import SELECTION_RULES
from unseen.report.formatting import NOTHING, SPACE, format_bytes, format_clock, format_value, method_name
from unseen.runs.reader import rounds_trained
from unseen.tasks import is_fraction, metric_label, primary_metric

if TYPE_CHECKING:
    from rich.table import Table

TEXT_COLUMNS = 2
_OTHERS = ("oracle", "last", "source validation", "in-domain", "rounds", "time", "sent")
_NARROW = {"source validation": "source\nvalid.", "in-domain": "in-\ndomain"}


def result_rows(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return headers and one row per run: the number by the run's own selection rule before oracle and last.

    Columns that no run has a value for are left out; seeds are given where they differ.
    """
    chosen = {str(result.get("selection")) for result in results}
    rules = {SELECTION_RULES[name].heading if name in SELECTION_RULES else "as selected" for name in chosen}
    metrics = {headline_metric(result) for result in results}
    measure = metric_label(metrics.pop()) if len(metrics) == 1 else "target"
    rule = rules.pop() if len(rules) == 1 else "as selected"
    headers = ["method", "held out", f"{measure} ({rule})", *_OTHERS]
    seeds = len({result.get("seed") for result in results}) > 1
    rows = [_row(result, seed=seeds) for result in results]
    always = TEXT_COLUMNS + 1
    kept = [i for i in range(len(headers)) if i < always or any(row[i] != NOTHING for row in rows)]
    return [headers[i] for i in kept], [[row[i] for i in kept] for row in rows]


def weights_sentence(results: Sequence[dict[str, Any]]) -> str:
    """Say how each method's clients are weighted, where that is recorded and differs between rows."""
    found: dict[str, list[str]] = {}
    for result in results:
        methods = found.setdefault(str(result.get("client_weights", "")), [])
        if (name := method_name(result.get("method", ""))) not in methods:
            methods.append(name)
    found.pop("", None)
    if len(found) < 2:
        return ""
    return (
        "Weights of clients: "
        + "; ".join(f"{how} in {', '.join(names)}" for how, names in found.items())
        + "."
    )


def headline_metric(result: dict[str, Any]) -> str:
    """Return the headline metric of a result."""
    return primary_metric(str(result.get("task")))


def result_table(results: Sequence[dict[str, Any]]) -> Table:
    """Make the table that `unseen train` and `unseen demo` print; fits 80 columns, accuracies in percent."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    headers, rows = result_rows(results)
    fractions = all(is_fraction(headline_metric(result)) for result in results)
    unit = " in %" if fractions else ""
    caption = f"target: {headers[TEXT_COLUMNS]}{unit}; oracle: best round on the held-out data"
    if said := weights_sentence(results):
        caption = f"{caption}\n{said}"
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, caption=caption)
    rows = [[cell.removesuffix(f"{SPACE}%") if fractions else cell for cell in row] for row in rows]
    for i, header in enumerate(headers):
        words = _NARROW.get(header, "target" if i == TEXT_COLUMNS else header)
        table.add_column(
            words, justify="left" if i < TEXT_COLUMNS else "right", no_wrap=i != 1, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(row[i], style="bold" if i == TEXT_COLUMNS else "") for i in range(len(row))))
    return table


def to_markdown(results: Sequence[dict[str, Any]]) -> str:
    """Format the same table as Markdown."""
    headers, rows = result_rows(results)
    ruler = [":--" if position < TEXT_COLUMNS else "--:" for position in range(len(headers))]
    return "\n".join(_line(cells) for cells in [headers, ruler, *rows]) + "\n"


def _row(result: dict[str, Any], *, seed: bool) -> list[str]:
    metric, metrics = headline_metric(result), result.get("metrics") or {}
    held_out = result.get("held_out") or []
    keys = ("target", "target_oracle", "target_last", "source_validation", "in_domain")
    return [
        method_name(result.get("method", "")) + (f", seed {result.get('seed')}" if seed else ""),
        held_out if isinstance(held_out, str) else ", ".join(map(str, held_out)) or "none",
        *(format_value((metrics.get(key) or {}).get(metric), metric) for key in keys),
        str(rounds_trained(result) or NOTHING),
        format_clock(result.get("seconds")),
        format_bytes(result.get("bytes_up")),
    ]


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;") for cell in cells)
    return "| " + " | ".join(escaped) + " |"
