"""The server's bounds on what single clients can do: aggregator, largest weight, clipped steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from unseen.aggregation.aggregators import Aggregator, Mean, StateMerging, clip_steps, step_norms
from unseen.aggregation.updates import SummedUpdates, Updates
from unseen.errors import UsageError


@dataclass(frozen=True)
class StepLimit:
    """Largest norm of a client's step from the global state: a number, or a multiple of the median norm."""

    norm: float | None = None
    multiple: float | None = None

    @classmethod
    def parse(cls, text: str | float) -> StepLimit:
        """Read `5` as a norm and `3x` as a multiple of the median norm."""
        written = str(text).strip()
        try:
            value = float(written.removesuffix("x"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise UsageError(
                f"--clip-update must be a norm above 0, or a multiple of the median norm (3x), not {text!r}"
            )
        return cls(multiple=value) if written.endswith("x") else cls(norm=value)

    def of(self, norms: Tensor) -> float:
        """Return the limit for a round in which the clients' steps have these norms."""
        if self.multiple is None:
            return float(self.norm or 0.0)
        return self.multiple * float(norms.quantile(0.5))


@dataclass(frozen=True)
class MergingPlan:
    """What the server does with the updates before and while the method averages them.

    aggregator  in place of the mean
    max_weight  largest part of a site in the mean
    limit       of every client's step
    """

    aggregator: Aggregator = field(default_factory=Mean)
    max_weight: float | None = None
    limit: StepLimit | None = None

    @property
    def acts(self) -> bool:
        """Whether anything is bounded at all."""
        return not isinstance(self.aggregator, Mean) or self.max_weight is not None or self.limit is not None

    def bind(
        self, updates: Updates, reference: Tensor, sites: Sequence[str]
    ) -> tuple[Updates, dict[str, Any]]:
        """Clip the updates' steps in place, and let their mean follow the plan.

        Returns the updates, and what acted, for the round's record; merging them adds to it.

        reference  the global state before the round
        sites      the site of every client
        """
        if not self.acts:
            return updates, {}
        if isinstance(updates, SummedUpdates) or len(updates.rows) != len(updates):
            raise UsageError("only the sum of the updates is known: single clients cannot be bounded")
        acted: dict[str, Any] = {}
        if self.limit is not None and len(updates):
            norms = step_norms(updates.rows, reference, updates.layout)
            limit = self.limit.of(norms)
            places = clip_steps(updates.rows, reference, norms, limit=limit, layout=updates.layout)
            if places:
                acted["largest_step"] = limit
                acted["clipped_steps"] = {updates.clients[place]: float(norms[place]) for place in places}
        if isinstance(self.aggregator, Mean) and self.max_weight is None:
            return updates, acted
        merging = StateMerging(
            self.aggregator,
            reference,
            clients=updates.clients,
            groups=tuple(sites),
            max_weight=self.max_weight,
            diagnostics=acted,
        )
        return replace(updates, merging=merging), acted

    def require_used(self, updates: Updates, *, method: str) -> None:
        """Refuse a method whose server half did not ask for the mean that the plan replaces."""
        if updates.merging is not None and not updates.merging.used:
            raise UsageError(
                f"method {method!r} does not average its clients' states, so that neither --aggregate nor "
                "--max-weight can act on it: use --aggregate mean without --max-weight"
            )
