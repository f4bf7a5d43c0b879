"""What a method costs and what a new site can expect of it, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unseen.bench.results import JobResult
from unseen.bench.statistics import ASSUMPTION, expected_accuracy, mean_and_error
from unseen.bench.study import Study, display_name
from unseen.bench.tables.sheet import Line, Sheet, Text, estimate_text, number_text, unit_text
from unseen.report.formatting import NOTHING, format_bytes, format_clock

Column = tuple[str, Callable[[Sequence[JobResult]], str]]


def expectation_sheet(study: Study, rule: str) -> Sheet:
    """Format the expectation for a new site: the mean, its interval, and the interval of a single site."""
    metric, lines = study.metric, list[Line]()
    for label in study.labels:
        found = expected_accuracy(study.by_domain(label, rule), metric=metric)
        if found is not None:
            spans = ((found.low, found.high), (found.site_low, found.site_high))
            intervals = [Text(_span(low, high, metric)) for low, high in spans]
            mean, count = Text(number_text(found.mean, metric)), Text(str(found.domains))
            lines.append((Text(display_name(label)), mean, *intervals, count))
    headers = ("method", "expected", "mean over such sites", "a single new site", "domains")
    note = f"Intervals of 95 %. {ASSUMPTION}"
    title = f"Expected {unit_text(metric)} on a new site{study.in_title}"
    return Sheet(title, headers, (("", tuple(lines)),), note)


def cost_sheet(study: Study) -> Sheet:
    """Format in-domain metrics and costs, one line per method; columns without any value are left out."""
    metric = study.metric
    columns: list[Column] = [
        ("in-domain", lambda runs: _estimate([run.in_domain for run in runs], metric)),
        ("worst group", lambda runs: _estimate([run.worst_group for run in runs], metric)),
        ("lowest run", lambda runs: number_text(_lowest(runs, study), metric)),
        ("time per run", lambda runs: format_clock(_mean([run.seconds for run in runs]))),
        ("sent by clients", lambda runs: _bytes(runs, [run.bytes_up for run in runs])),
        ("sent to clients", lambda runs: _bytes(runs, [run.bytes_down for run in runs])),
        ("transfers in turn", lambda runs: _count([run.transfers for run in runs])),
        ("clients idle", lambda runs: _share([run.idle for run in runs])),
    ]
    lines: list[list[str]] = []
    for label in study.labels:
        runs = [result for result in study.results if result.label == label]
        lines.append(
            [display_name(label), *(format_runs(runs) if runs else NOTHING for _, format_runs in columns)]
        )
    kept = [0, *(at for at in range(1, len(columns) + 1) if any(line[at] != NOTHING for line in lines))]
    headers = ("method", *(name for name, _ in columns))
    shown: tuple[Line, ...] = tuple(tuple(Text(line[at]) for at in kept) for line in lines)
    note = (
        f"Means over the finished runs; {unit_text(metric)} where no unit is given. In-domain: test data of "
        "the sources. Lowest run: the held-out domain and seed that went worst. Times depend on the machine."
    )
    if "transfers in turn" in (headers[at] for at in kept):
        note += (
            " Transfers in turn: to a client and back, one after another. Clients idle: part of the run in "
            "which a client waits for others, if all visits take equally long. Pooled data is not counted."
        )
    title = f"In-domain performance and cost{study.in_title}"
    return Sheet(title, tuple(headers[at] for at in kept), (("", shown),), note)


def _span(low: float | None, high: float | None, metric: str) -> str:
    return NOTHING if low is None else f"{number_text(low, metric)} to {number_text(high, metric)}"


def _lowest(runs: Sequence[JobResult], study: Study) -> float | None:
    rule = study.rules[0] if study.rules else ""
    return min((run.accuracy[rule] for run in runs if rule in run.accuracy), default=None)


def _estimate(values: Sequence[float | None], metric: str) -> str:
    return estimate_text(mean_and_error(value for value in values if value is not None), metric)


def _bytes(runs: Sequence[JobResult], sent: Sequence[int]) -> str:
    """Format the mean; where data is pooled, a model does not travel."""
    return NOTHING if all(run.transfers == 0 for run in runs) else format_bytes(_mean(sent))


def _count(values: Sequence[int | None]) -> str:
    found = mean_and_error(value for value in values if value is not None)
    return f"{found.mean:.0f}" if found else NOTHING


def _share(values: Sequence[float | None]) -> str:
    found = mean_and_error(value for value in values if value is not None)
    return f"{found.mean:.0%}" if found else NOTHING


def _mean(values: Sequence[float]) -> float | None:
    found = mean_and_error(values)
    return found.mean if found else None
