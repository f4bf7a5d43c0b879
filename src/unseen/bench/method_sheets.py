"""One line a method: what to expect of it on a new site, what it gives at home, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unseen.bench.expectation import ASSUMPTION, expected_accuracy
from unseen.bench.results import JobResult
from unseen.bench.sheets import Line, Sheet, Text, estimate_text, number_text, unit_text
from unseen.bench.statistics import mean_and_error
from unseen.bench.study import Study, display_name
from unseen.report.wording import NOTHING, clock, size

Column = tuple[str, Callable[[Sequence[JobResult]], str]]


def expectation_sheet(study: Study, rule: str) -> Sheet:
    """What to expect on a new site: the mean, its interval, and the interval of a single site."""
    metric, lines = study.metric, list[Line]()
    for label in study.labels:
        found = expected_accuracy(study.by_domain(label, rule), metric=metric)
        if found is not None:
            spans = ((found.low, found.high), (found.site_low, found.site_high))
            told = [Text(_span(low, high, metric)) for low, high in spans]
            mean, count = Text(number_text(found.mean, metric)), Text(str(found.domains))
            lines.append((Text(display_name(label)), mean, *told, count))
    headers = ("method", "expected", "mean over such sites", "a single new site", "domains")
    note = f"Intervals of 95 %. {ASSUMPTION}"
    title = f"Expected {unit_text(metric)} on a new site{study.in_title}"
    return Sheet(title, headers, (("", tuple(lines)),), note)


def cost_sheet(study: Study) -> Sheet:
    """One line a method; columns that no run has a number for are left out."""
    metric = study.metric
    columns: list[Column] = [
        ("in-domain", lambda runs: _estimate([run.in_domain for run in runs], metric)),
        ("worst group", lambda runs: _estimate([run.worst_group for run in runs], metric)),
        ("lowest run", lambda runs: number_text(_lowest(runs, study), metric)),
        ("time a run", lambda runs: clock(_mean([run.seconds for run in runs]))),
        ("sent by clients", lambda runs: size(_mean([run.bytes_up for run in runs]))),
        ("sent to clients", lambda runs: size(_mean([run.bytes_down for run in runs]))),
    ]
    lines: list[list[str]] = []
    for label in study.labels:
        runs = [result for result in study.results if result.label == label]
        lines.append([display_name(label), *(told(runs) if runs else NOTHING for _, told in columns)])
    kept = [0, *(at for at in range(1, len(columns) + 1) if any(line[at] != NOTHING for line in lines))]
    headers = ("method", *(name for name, _ in columns))
    shown: tuple[Line, ...] = tuple(tuple(Text(line[at]) for at in kept) for line in lines)
    note = (
        f"Means over the finished runs; {unit_text(metric)} where no unit stands. In-domain: test data of "
        "the sources. Lowest run: the held-out domain and seed that went worst. Times depend on the machine."
    )
    title = f"At home, and at what cost{study.in_title}"
    return Sheet(title, tuple(headers[at] for at in kept), (("", shown),), note)


def _span(low: float | None, high: float | None, metric: str) -> str:
    return NOTHING if low is None else f"{number_text(low, metric)} to {number_text(high, metric)}"


def _lowest(runs: Sequence[JobResult], study: Study) -> float | None:
    rule = study.rules[0] if study.rules else ""
    return min((run.accuracy[rule] for run in runs if rule in run.accuracy), default=None)


def _estimate(values: Sequence[float | None], metric: str) -> str:
    return estimate_text(mean_and_error(value for value in values if value is not None), metric)


def _mean(values: Sequence[float]) -> float | None:
    found = mean_and_error(values)
    return found.mean if found else None
