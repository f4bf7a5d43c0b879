"""Figures of settings: sensitivity to one, and accuracy against the number of source domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from unseen.bench.shown import Shown, estimate_row
from unseen.bench.study import display_name
from unseen.bench.tables import mean_over_domains
from unseen.bench.varied import SOURCES, Varied, value_text, varied_settings
from unseen.report.intervals import setting_chart

if TYPE_CHECKING:
    from unseen.report.charts import Panels


def sensitivity(shown: Shown) -> Panels:
    """The metric against every setting in which labels of the grid differ."""
    found = [varied for varied in varied_settings(shown.grid) if varied.setting != SOURCES]
    return _settings(shown, found)


def number_of_sources(shown: Shown) -> Panels:
    """The metric against the number of source domains, where the grid varies them."""
    found = [varied for varied in varied_settings(shown.grid) if varied.setting == SOURCES]
    return _settings(shown, found, title="number of source domains")


def _settings(shown: Shown, found: Sequence[Varied], *, title: str = "") -> Panels:
    panels: Panels = {}
    by_setting: dict[str, list[Varied]] = {}
    for varied in found:
        by_setting.setdefault(varied.setting, []).append(varied)
    for setting, group in by_setting.items():
        rows, touched = [], set()
        for varied in group:
            touched |= set(varied.values)
            for label, value in varied.values.items():
                estimate = mean_over_domains(shown.study, label, shown.rule)
                at = {"at": value_text(setting, value), "series": display_name(varied.method) or "all"}
                rows += [estimate_row(estimate, **at)] if estimate else []
        if rows:
            values = list(
                dict.fromkeys(value_text(setting, v) for varied in group for v in varied.values.values())
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


def _level(shown: Shown, touched: set[str]) -> tuple[str, float] | None:
    """The baseline, if it is not itself among the labels whose setting varies."""
    if shown.baseline is None or shown.baseline in touched:
        return None
    estimate = mean_over_domains(shown.study, shown.baseline, shown.rule)
    return (display_name(shown.baseline), estimate.mean) if estimate else None
