"""Measured cost of a round of each method relative to FedAvg, read from `method_costs.json`.

`benchmarks/method_costs.py` measures and writes that file; nothing here is estimated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COSTS = Path(__file__).with_name("method_costs.json")


@dataclass(frozen=True)
class Cost:
    """Cost of a round after the first on one small job: seconds, bytes both ways, ratios to FedAvg's.

    Bytes are none where data is pooled instead of sent round by round.
    """

    seconds: float
    seconds_ratio: float
    bytes: int | None
    bytes_ratio: float | None


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured job, and the cost of each method in it."""

    job: str
    methods: dict[str, Cost]


def measured_costs() -> MeasuredCosts:
    """Read the measurements; empty if there are none yet."""
    if not COSTS.is_file():
        return MeasuredCosts("", {})
    values: dict[str, Any] = json.loads(COSTS.read_text(encoding="utf-8"))
    costs = {name: Cost(**cost) for name, cost in values["methods"].items()}
    return MeasuredCosts(values["job"], costs)
