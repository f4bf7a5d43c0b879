"""Setting sweeps: groups of labels that differ in one setting alone, for the sensitivity figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unseen.bench.grid import Grid

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
    """Find every group of two or more labels whose configurations differ in one setting alone."""
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
