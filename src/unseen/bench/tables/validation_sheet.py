"""The validation domains and the worst groups next to the held-out domains, as WILDS' tables have them."""

from __future__ import annotations

from collections.abc import Callable

from unseen.bench.papers.published_tables import PublishedTable
from unseen.bench.results import JobResult
from unseen.bench.statistics import Estimate, mean_and_error
from unseen.bench.study import Study, display_name
from unseen.bench.tables.sheet import Line, Sheet, Text, estimate_text, unit_text
from unseen.evaluation.selection import ValidationDomains

_RULE = ValidationDomains.name
Value = Callable[[JobResult], float | None]
COLUMNS: tuple[tuple[str, str, Value], ...] = (
    ("validation", "validation", lambda run: run.validation),
    ("worst group of validation", "validation worst", lambda run: run.validation_worst),
    ("held out", "released", lambda run: run.accuracy.get(_RULE)),
    ("worst group held out", "released worst", lambda run: run.worst_group),
)
"""Heading, name of the column in published tables, and the value of a run."""


def validation_sheet(study: Study, published: PublishedTable | None = None) -> Sheet | None:
    """Format a line per method; None unless runs kept domains to choose the round.

    Columns without any value of ours are left out. Printed rows follow where the metric is the same.
    """
    if all(run.validation is None for run in study.results):
        return None
    shown = [column for column in COLUMNS if any(column[2](run) is not None for run in study.results)]
    ours: list[Line] = []
    for label in study.labels:
        runs = [run for run in study.results if run.label == label]
        cells = [mean_and_error(v for run in runs if (v := value(run)) is not None) for _, _, value in shown]
        ours.append((Text(display_name(label)), *(Text(estimate_text(cell, study.metric)) for cell in cells)))
    groups = [("", tuple(ours))]
    if published is not None and any(name in published.columns for _, name, _ in shown):
        groups.append(
            (
                f"published in {published.paper.name}, {published.table}",
                _print_row(published, study, shown),
            )
        )
    title = f"Held-out and validation {unit_text(study.metric)}{study.in_title}, by validation domains"
    note = (
        "Validation: the domains kept to choose the round, after the round that they choose, so that these "
        "numbers are optimistic. Averages are over all samples where the data has groups."
    )
    return Sheet(title, ("method", *(heading for heading, _, _ in shown)), tuple(groups), note)


def _print_row(
    published: PublishedTable, study: Study, shown: list[tuple[str, str, Value]]
) -> tuple[Line, ...]:
    lines: list[Line] = []
    for row in published.rows.values():
        known = dict(zip(published.columns, row.values, strict=True))
        cells = [known.get(name) for _, name, _ in shown]
        estimates = [None if value is None else Estimate(value / published.scale, None, 1) for value in cells]
        texts = [Text(estimate_text(each, study.metric, decimals=row.decimals)) for each in estimates]
        lines.append((Text(f"{row.label} (published)"), *texts))
    return tuple(lines)
