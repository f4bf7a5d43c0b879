"""What left the clients, for a reader who answers for the data: kinds, sizes, senders, protection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unseen.privacy import sum_bytes_by_sender
from unseen.report.formatting import format_bytes, format_count
from unseen.report.markup import Markup, join, section, table, tag
from unseen.runs.reader import Run

TITLE = "What left the clients"
SENDERS_SHOWN = 1000
NEVER = (
    "Training samples themselves are sent only where the table names them. What each client sent in each "
    "round stands in records.jsonl."
)


def departures_section(run: Run) -> Markup:
    """The record of what left, or the bare list that older runs have."""
    result = run.result or {}
    lines = result.get("left") or []
    if not lines:
        return _kinds_only(result.get("privacy") or [])
    protection = result.get("protection") or {}
    return section(
        TITLE,
        tag("p", protection.get("statement", "")),
        _spent(protection),
        _kinds(lines),
        tag("p", NEVER, class_="note"),
        _senders(run),
    )


def _kinds_only(kinds: list[str]) -> Markup:
    if not kinds:
        return Markup("")
    intro = tag("p", "In this run, these kinds of values left the clients:")
    return section(TITLE, intro, tag("ul", *(tag("li", kind) for kind in kinds)))


def _spent(protection: Mapping[str, Any]) -> Markup:
    """Numbers that a protection reports of itself, such as an epsilon."""
    told = {key: value for key, value in protection.items() if key not in ("name", "statement")}
    if not told:
        return Markup("")
    return tag("p", "Protection: " + ", ".join(f"{key} {value}" for key, value in told.items()) + ".")


def _kinds(lines: list[dict[str, Any]]) -> Markup:
    rows = [
        [
            line.get("kind", ""),
            line.get("protected", ""),
            format_count(line.get("senders")),
            format_count(line.get("messages")),
            format_bytes(line["bytes"] / line["messages"]) if line.get("messages") else "",
            format_bytes(line.get("bytes")),
        ]
        for line in lines
    ]
    headers = ["what", "how it was protected", "senders", "messages", "size of one", "in all"]
    return table(headers, rows, text_columns=2)


def _senders(run: Run) -> Markup:
    """Every sender's own sums, folded away."""
    found = sum_bytes_by_sender(run.records)
    if not found:
        return Markup("")
    rows = [
        [
            sender,
            format_bytes(sum(kinds.values())),
            "; ".join(f"{kind} {format_bytes(part)}" for kind, part in kinds.items()),
        ]
        for sender, kinds in list(found.items())[:SENDERS_SHOWN]
    ]
    left_out = len(found) - len(rows)
    more = tag("p", f"{left_out} more are in records.jsonl.", class_="note") if left_out > 0 else ""
    grid = table(["client or domain", "in all", "of which"], rows, text_columns=3, tall=len(rows) > 12)
    return tag("details", tag("summary", f"Sums of each of {len(found)} senders"), join([grid, more]))
