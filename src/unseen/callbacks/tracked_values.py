"""What trackers show of a run: its name, parameters, tags and values, from configuration, records and result.

Live tracking and `unseen track` call the same functions with the same records, so they give the same values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from unseen.run_identity import WHERE
from unseen.runs.reader import Run
from unseen.runs.records import Record

Values = Iterator[tuple[str, float]]
_PATHS = ("data", "weights")
"""Options that may be paths; only their last part is tracked."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers present it.

    name     method/held-out/seed, or what the caller chose
    group    the bench that the run belongs to; empty for a single run
    started  seconds since 1970
    """

    folder: Path
    name: str
    group: str
    parameters: dict[str, str]
    tags: dict[str, str]
    started: float


def describe_run(run: Run, *, name: str = "", group: str = "") -> TrackedRun:
    """Describe a run for trackers; where it executes, and folders of this machine, are left out."""
    config = {key: value for key, value in run.config.items() if key not in WHERE}
    config |= {key: Path(str(config[key])).name for key in _PATHS if config.get(key)}
    held_out, method = "+".join(run.held_out), str(config.get("method", ""))
    tags = {
        "unseen.version": run.start.get("version", ""),
        "unseen.run_id": run.start.get("run_id", ""),
        "method": method,
        "held_out": held_out,
        "data": run.data.get("name", config.get("data", "")),
        "group": group,
    }
    return TrackedRun(
        folder=run.folder,
        name=name or f"{method}/{held_out}/{config.get('seed', 0)}",
        group=group,
        parameters=dict(_flat(config)),
        tags={key: str(value) for key, value in tags.items() if value},
        started=_seconds(run.start.get("time")),
    )


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and texts of all values; those of tables are named `settings.name`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value if isinstance(value, str) else json.dumps(value, default=str)


def _seconds(time: Any) -> float:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return 0.0


def round_values(record: Record) -> Values:
    """Yield the names and values of a round record."""
    for name, value in (
        ("train/loss", record.get("loss")),
        ("train/samples", record.get("samples")),
        ("traffic/bytes_up", record.get("bytes_up")),
        ("traffic/bytes_down", record.get("bytes_down")),
        ("time/round_seconds", record.get("seconds")),
    ):
        yield from _numbers(name, value)
    for part in ("diagnostics", "distances", "protection"):
        yield from _numbers(part, record.get(part))


def evaluation_values(record: Record) -> Values:
    """Yield the names and values of an evaluation record: every metric per split and domain."""
    for score in record["scores"]:
        for metric, value in score["metrics"].items():
            yield from _numbers(f"{metric}/{score['split']}/{score['domain']}", value)
    yield from _numbers("time/evaluation_seconds", record.get("seconds"))


def result_values(result: Mapping[str, Any]) -> Values:
    """Yield the names and values of a finished run: the metrics of the selected round, and the totals."""
    for name in ("metrics", "selected_round", "bytes_up", "bytes_down", "seconds"):
        yield from _numbers("result" if name == "metrics" else f"result/{name}", result.get(name))


VALUES: Mapping[str, Callable[[Record], Values]] = {"round": round_values, "evaluation": evaluation_values}
"""Events with values for trackers, in the order in which a round writes them."""


def _numbers(name: str, value: Any) -> Values:
    """Yield every finite number in a value, below a name per key; texts and missing values are skipped."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{name}/{key}", item)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _numbers(f"{name}/{position}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield name, float(value)
