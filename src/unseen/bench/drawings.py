"""Figures of results: every domain, what to expect elsewhere, curves over the rounds, all against all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unseen.bench.against import all_against_all
from unseen.bench.expectation import expected_accuracy
from unseen.bench.sentences import p_number
from unseen.bench.shown import Shown, estimate_row
from unseen.bench.statistics import mean_and_error
from unseen.bench.study import display_name
from unseen.config import RunConfig
from unseen.report.charts import MOST_ROUNDS, heat_map, thinned
from unseen.report.curves import curve_chart
from unseen.report.intervals import dot_chart, nested_intervals
from unseen.report.wording import NOTHING, is_share

if TYPE_CHECKING:
    from unseen.report.charts import Panels

MOST_PANELS = 12


def domain_dots(shown: Shown) -> Panels:
    """Every held-out domain: a dot a method, with the standard error over seeds."""
    study, rows = shown.study, []
    for label in study.labels:
        for domain, values in study.by_domain(label, shown.rule).items():
            estimate = mean_and_error(values)
            rows += [estimate_row(estimate, name=domain, series=display_name(label))] if estimate else []
    if not rows:
        return {}
    return {"": dot_chart(rows, metric=study.metric, names=study.domains, series=shown.names)}


def expectations(shown: Shown) -> Panels:
    """What every method may be expected to do on a new site."""
    rows: list[dict[str, Any]] = []
    for label in shown.study.labels:
        found = expected_accuracy(shown.study.by_domain(label, shown.rule), metric=shown.study.metric)
        if found is not None:
            row = {"name": display_name(label), "value": found.mean}
            ends = {
                "low": found.low,
                "high": found.high,
                "wide_low": found.site_low,
                "wide_high": found.site_high,
            }
            rows.append(row if found.low is None else row | ends)
    if not rows:
        return {}
    return {"": nested_intervals(rows, metric=shown.study.metric, names=[row["name"] for row in rows])}


def curves(shown: Shown) -> Panels:
    """For every held-out domain a line a method: mean over seeds, with a band of one standard error."""
    study = shown.study
    panels: Panels = {}
    for domain in study.domains[:MOST_PANELS]:
        rows = [row for label in study.labels for row in _curve(shown, label, domain)]
        if rows:
            panels[f"‘{domain}’ held out"] = curve_chart(
                rows, metric=study.metric, selected=None, series=shown.names
            ).properties(height=240)
    return panels


def matrix(shown: Shown) -> Panels:
    """Method against method: the difference as colour, the p-value of the paired t-test as text."""
    names, rows = dict(zip(shown.study.labels, shown.names, strict=True)), []
    scale = 100 if is_share(shown.study.metric) else 1
    for each in all_against_all(shown.study, shown.rule):
        if each.runs.pairs:
            p = (
                NOTHING
                if each.runs.t_p is None
                else p_number(each.runs.t_p) + ("*" if each.significant else "")
            )
            for down, across, sign in ((each.ours, each.baseline, 1), (each.baseline, each.ours, -1)):
                cell = {
                    "down": names[down],
                    "across": names[across],
                    "value": sign * scale * each.runs.difference,
                }
                rows.append(cell | {"text": p, "cases": each.runs.pairs})
    if not rows:
        return {}
    told = "points ahead" if scale == 100 else "ahead"
    tooltip = [("down:N", "method", ""), ("across:N", "against", ""), ("value:Q", told, "+.2f")]
    tooltip += [("text:N", "p, t-test", ""), ("cases:Q", "pairs", "")]
    chart = heat_map(
        rows, across=shown.names, down=shown.names, titles=("against", None), tooltip=tooltip, signed=True
    )
    return {"": chart}


def _curve(shown: Shown, label: str, domain: str) -> list[dict[str, Any]]:
    runs = [r.curve for r in shown.study.results if (r.label, r.held_out) == (label, domain) and r.curve]
    rounds = evaluated_rounds(shown.grid.job(label, domain, 0).config, max(map(len, runs), default=0))
    rows = []
    for place, number in thinned(list(enumerate(rounds)), MOST_ROUNDS):
        estimate = mean_and_error(run[place] for run in runs if place < len(run))
        if estimate is not None:
            rows.append(estimate_row(estimate, series=display_name(label), role="method", round=number))
    return rows


def evaluated_rounds(config: RunConfig, count: int) -> list[int]:
    """The rounds of a curve: every `evaluate_every`th, and the last."""
    return [min(config.evaluate_every * (place + 1), config.rounds) for place in range(count)]
