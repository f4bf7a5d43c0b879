"""The figures of a bench; a new one is a function here and an entry in `BENCH_FIGURES`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unseen.bench.comparisons import compare_all_pairs, p_number
from unseen.bench.grid import Grid
from unseen.bench.statistics import Estimate, expected_accuracy, mean_and_error
from unseen.bench.study import Study, display_name
from unseen.bench.tables.results_table import mean_over_domains
from unseen.config import RunConfig
from unseen.report.charts import MOST_ROUNDS, downsample, heat_map, skip_schema_checks
from unseen.report.curves import curve_chart
from unseen.report.figures import Figure
from unseen.report.formatting import NOTHING
from unseen.report.intervals import dot_chart, nested_interval_chart, setting_chart
from unseen.tasks import is_fraction

if TYPE_CHECKING:
    from unseen.report.charts import Panels


MOST_PANELS = 12
SOURCES = "sources"
"""The option that names a run's source domains; figures show how many there are."""


@dataclass(frozen=True)
class SettingSweep:
    """A setting and the labels that differ in nothing else, by its value, in the order of the values."""

    setting: str
    values: Mapping[str, Any]

    @property
    def method(self) -> str:
        """The common beginning of the labels."""
        first, last = min(self.values), max(self.values)
        same = next((at for at, sign in enumerate(first) if at >= len(last) or last[at] != sign), len(first))
        return first[:same].rstrip(" =,:;-_.0123456789(")


def setting_sweeps(grid: Grid) -> list[SettingSweep]:
    """Find every group of two or more labels whose configurations differ in one setting only."""
    configs = {label: _configuration(grid, label) for label in grid.methods}
    names = sorted({name for config in configs.values() for name in config})
    found = []
    for name in names:
        groups: dict[str, dict[str, Any]] = {}
        for label, config in configs.items():
            if name in config:
                rest = repr(sorted((key, value) for key, value in config.items() if key != name))
                groups.setdefault(rest, {})[label] = config[name]
        for labels in groups.values():
            ordered = dict(sorted(labels.items(), key=lambda item: _order(item[1])))
            if len({repr(value) for value in ordered.values()}) > 1:
                found.append(SettingSweep(name, ordered))
    return found


def value_text(setting: str, value: Any) -> str:
    """Format a setting's value for an axis; of source domains their number, where not all take part."""
    if setting == SOURCES:
        return str(len(value)) if value else "all"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _configuration(grid: Grid, label: str) -> dict[str, Any]:
    """Return all fields of a label's runs together with the method's settings, defaults filled in."""
    config = vars(grid.job(label, grid.hold_out[0], grid.seeds[0]).config)
    return {**{key: value for key, value in config.items() if key != "settings"}, **config["settings"]}


def _order(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, float(value), ""
    if isinstance(value, list | tuple):
        return 1, float(len(value) or math.inf), ""
    return 2, 0.0, str(value)


@dataclass(frozen=True)
class FigureContext:
    """Data of a figure: the results of one model under one selection rule."""

    grid: Grid
    study: Study
    rule: str
    baseline: str | None = None

    @property
    def names(self) -> list[str]:
        """Display names of the methods."""
        return [display_name(label) for label in self.study.labels]


def estimate_row(estimate: Estimate, **facts: Any) -> dict[str, Any]:
    """Make a chart's row: the mean, and the interval of one standard error to either side if it is known."""
    error = estimate.error
    ends = {} if error is None else {"low": estimate.mean - error, "high": estimate.mean + error}
    return {**facts, "value": estimate.mean, **ends}


def domain_dots(shown: FigureContext) -> Panels:
    """Draw a dot per method and held-out domain, with the standard error over seeds."""
    study, rows = shown.study, []
    for label in study.labels:
        for domain, values in study.by_domain(label, shown.rule).items():
            estimate = mean_and_error(values)
            rows += [estimate_row(estimate, name=domain, series=display_name(label))] if estimate else []
    if not rows:
        return {}
    return {"": dot_chart(rows, metric=study.metric, names=study.domains, series=shown.names)}


def expectations(shown: FigureContext) -> Panels:
    """Draw the expected accuracy of every method on a new site."""
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
    return {"": nested_interval_chart(rows, metric=shown.study.metric, names=[row["name"] for row in rows])}


def curves(shown: FigureContext) -> Panels:
    """Draw a panel per held-out domain and a line per method: mean over seeds ± one standard error."""
    study = shown.study
    panels: Panels = {}
    for domain in study.domains[:MOST_PANELS]:
        rows = [row for label in study.labels for row in _curve(shown, label, domain)]
        if rows:
            panels[f"‘{domain}’ held out"] = curve_chart(
                rows, metric=study.metric, selected=None, series=shown.names
            ).properties(height=240)
    return panels


def matrix(shown: FigureContext) -> Panels:
    """Draw method against method: the difference as color, the p-value of the paired t-test as text."""
    names, rows = dict(zip(shown.study.labels, shown.names, strict=True)), []
    scale = 100 if is_fraction(shown.study.metric) else 1
    for each in compare_all_pairs(shown.study, shown.rule):
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
    unit = "points ahead" if scale == 100 else "ahead"
    tooltip = [("down:N", "method", ""), ("across:N", "against", ""), ("value:Q", unit, "+.2f")]
    tooltip += [("text:N", "p, t-test", ""), ("cases:Q", "pairs", "")]
    chart = heat_map(
        rows, across=shown.names, down=shown.names, titles=("against", None), tooltip=tooltip, signed=True
    )
    return {"": chart}


def _curve(shown: FigureContext, label: str, domain: str) -> list[dict[str, Any]]:
    runs = [r.curve for r in shown.study.results if (r.label, r.held_out) == (label, domain) and r.curve]
    rounds = evaluated_rounds(shown.grid.job(label, domain, 0).config, max(map(len, runs), default=0))
    rows = []
    for place, number in downsample(list(enumerate(rounds)), MOST_ROUNDS):
        estimate = mean_and_error(run[place] for run in runs if place < len(run))
        if estimate is not None:
            rows.append(estimate_row(estimate, series=display_name(label), role="method", round=number))
    return rows


def evaluated_rounds(config: RunConfig, count: int) -> list[int]:
    """List the rounds of a curve: every `evaluate_every`th, and the last; 0 where the head has a start."""
    start = [] if config.head == "random" else [0]
    rest = range(count - len(start))
    return start + [min(config.evaluate_every * (place + 1), config.rounds) for place in rest]


def sensitivity(shown: FigureContext) -> Panels:
    """Draw the metric against every setting in which labels of the grid differ."""
    found = [sweep for sweep in setting_sweeps(shown.grid) if sweep.setting != SOURCES]
    return _settings(shown, found)


def number_of_sources(shown: FigureContext) -> Panels:
    """Draw the metric against the number of source domains, where the grid varies them."""
    found = [sweep for sweep in setting_sweeps(shown.grid) if sweep.setting == SOURCES]
    return _settings(shown, found, title="number of source domains")


def _settings(shown: FigureContext, found: Sequence[SettingSweep], *, title: str = "") -> Panels:
    panels: Panels = {}
    by_setting: dict[str, list[SettingSweep]] = {}
    for sweep in found:
        by_setting.setdefault(sweep.setting, []).append(sweep)
    for setting, group in by_setting.items():
        rows, touched = [], set()
        for sweep in group:
            touched |= set(sweep.values)
            for label, value in sweep.values.items():
                estimate = mean_over_domains(shown.study, label, shown.rule)
                at = {"at": value_text(setting, value), "series": display_name(sweep.method) or "all"}
                rows += [estimate_row(estimate, **at)] if estimate else []
        if rows:
            values = list(
                dict.fromkeys(value_text(setting, v) for sweep in group for v in sweep.values.values())
            )
            panels[title or setting.replace("_", " ")] = setting_chart(
                rows,
                metric=shown.study.metric,
                setting=title or setting.replace("_", " "),
                values=values,
                series=list(dict.fromkeys(row["series"] for row in rows)),
                level=_level(shown, touched),
            )
    return panels


def _level(shown: FigureContext, touched: set[str]) -> tuple[str, float] | None:
    """Return the baseline's mean, unless the baseline is among the labels whose setting varies."""
    if shown.baseline is None or shown.baseline in touched:
        return None
    estimate = mean_over_domains(shown.study, shown.baseline, shown.rule)
    return (display_name(shown.baseline), estimate.mean) if estimate else None


BENCH_FIGURES: dict[str, Figure[FigureContext]] = {
    "domains": Figure(
        "Every held-out domain",
        "A dot is a method's mean over seeds, its line one standard error to either side.",
        domain_dots,
    ),
    "expected": Figure(
        "Expected on a new site",
        "The dot is the mean over held-out domains. Thick: 95 % confidence interval of the mean over all "
        "such sites. Thin: 95 % prediction interval of a single new site. See the note below the table.",
        expectations,
    ),
    "curves": Figure(
        "Over the rounds",
        "Mean over seeds on the held-out domain after every evaluated round; the band is one standard error "
        "to either side. Click a name to single it out. Nothing here was used to choose a round.",
        curves,
        width="full",
    ),
    "sensitivity": Figure(
        "Sensitivity to a setting",
        "Mean over the held-out domains with its standard error over seeds. The dashed line is the baseline.",
        sensitivity,
    ),
    "sources": Figure(
        "With more source domains",
        "Mean over the held-out domains against the number of domains used in training.",
        number_of_sources,
    ),
    "matrix": Figure(
        "Method against method",
        "Blue: the method of the row is ahead of the one below; brown: behind. The text is the p-value of "
        "the paired t-test; a star marks what stays significant after Holm's correction for all pairs.",
        matrix,
    ),
}


def draw_bench(shown: FigureContext) -> dict[str, Panels]:
    """Draw all figures that have something to show, by their names in `BENCH_FIGURES`."""
    with skip_schema_checks():
        drawn = {name: figure.panels(shown) for name, figure in BENCH_FIGURES.items()}
    return {name: panels for name, panels in drawn.items() if panels}
