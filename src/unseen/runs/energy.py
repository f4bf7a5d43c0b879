"""Energy of a run on the machine that ran it: measured by the processor's own counters, else estimated.

One entry per start of the run in `energy.json`, so a resumed run sums over all of them. Nothing that a run
computes depends on it. A crash costs at most the last seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unseen.checksums import json_with_sum, parse_json_with_sum
from unseen.fileio import write_text

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows the energy counters of Intel and AMD processors (RAPL); often readable by root only."""
WATTS = 15.0
"""Assumed power of one busy processor core with its share of the machine, where nothing can be measured."""
SECONDS_BETWEEN_WRITES = 5.0
JOULES_PER_KWH = 3.6e6


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


class Counters:
    """The energy counters of all processor packages; each starts over at its largest value."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        zones = sorted(powercap.glob("*-rapl:*")) if powercap.is_dir() else []
        packages = [zone for zone in zones if zone.name.count(":") == 1]
        self._last = {
            zone: value for zone in packages if (value := _read_number(zone / "energy_uj")) is not None
        }
        self._microjoules = 0
        self.readable = bool(self._last)

    def joules(self) -> float | None:
        """Return the energy since the start; None where it cannot be read (any more)."""
        for zone, last in self._last.items():
            value = _read_number(zone / "energy_uj")
            if value is None:
                self.readable = False
                break
            ended = (_read_number(zone / "max_energy_range_uj") or last) if value < last else 0
            self._microjoules += value - last + ended
            self._last[zone] = value
        return self._microjoules / 1e6 if self.readable else None


class EnergyMeter:
    """Measures from its creation on, and keeps that with earlier starts of the run in a file."""

    def __init__(self, file: Path, *, powercap: Path = POWERCAP) -> None:
        self.file = file
        self._earlier = read_sessions(file)
        self._counters = Counters(powercap)
        self._started = self._written = time.monotonic()
        self._cpu = _cpu_seconds()

    def save(self, *, now: bool = False) -> None:
        """Write what was used so far, unless that was done some seconds ago."""
        reading = self._counters.joules()
        if not now and time.monotonic() - self._written < SECONDS_BETWEEN_WRITES:
            return
        self._written = time.monotonic()
        own = {
            "seconds": round(self._written - self._started, 3),
            "cpu_seconds": round(_cpu_seconds() - self._cpu, 3),
            "joules": reading,
        }
        write_text(self.file, json_with_sum({"sessions": [*self._earlier, own]}) + "\n")


def _cpu_seconds() -> float:
    """Return processor time of this process and of the children that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def read_sessions(file: Path) -> list[dict[str, Any]]:
    """Read what earlier starts used; a missing file is none, and a damaged one a start of unknown use."""
    try:
        found = parse_json_with_sum(file.read_text(encoding="utf-8"))["sessions"]
        return [{name: each[name] for name in ("seconds", "cpu_seconds", "joules")} for each in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return [{"seconds": None, "cpu_seconds": None, "joules": None}]


class EnergyUse(NamedTuple):
    """Energy over all starts of a run.

    how    `measured`, `estimated`, or `partly measured`
    known  whether the use of every start is
    """

    joules: float
    how: str
    cpu_seconds: float
    starts: int
    known: bool


def sum_energy(sessions: Sequence[Mapping[str, Any]], *, watts: float = WATTS) -> EnergyUse | None:
    """Sum over the starts of a run, those without counters by CPU seconds x watts; None without any."""
    counted = [each for each in sessions if each["cpu_seconds"] is not None]
    if not counted:
        return None
    measured = [each["joules"] for each in counted if each["joules"] is not None]
    estimated = [watts * each["cpu_seconds"] for each in counted if each["joules"] is None]
    how = "partly measured" if measured and estimated else "measured" if measured else "estimated"
    seconds = sum(each["cpu_seconds"] for each in counted)
    joules = sum([*measured, *estimated])
    return EnergyUse(joules, how, seconds, len(sessions), len(counted) == len(sessions))
