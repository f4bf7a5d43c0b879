"""Model selection: which round's model is the result. A pure function of the records.

`source-validation` (default) looks only at validation data of the source domains; `last` at nothing;
`oracle` at the held-out domain itself, which no real user could, and is there only to compare with
published numbers that were chosen that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from unseen.data import Task
from unseen.evaluation.tally import PRIMARY

Selection = Literal["source-validation", "last", "oracle"]
Record = dict[str, Any]
_Rank = tuple[float, float, int]


def mean_metric(evaluation: Record, split: str, metric: str) -> float:
    """Mean of a metric over the domains of a split, each domain counting the same."""
    values = [score["metrics"].get(metric) for score in evaluation["scores"] if score["split"] == split]
    finite = [value for value in values if value is not None and not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _best_on(split: str) -> Callable[[Record, str], _Rank]:
    """Rank by the primary metric, then by lower loss, then by the earlier round."""

    def rank(evaluation: Record, metric: str) -> _Rank:
        value, loss = mean_metric(evaluation, split, metric), mean_metric(evaluation, split, "loss")
        missing = -math.inf
        return (
            missing if math.isnan(value) else value,
            missing if math.isnan(loss) else -loss,
            -evaluation["round"],
        )

    return rank


def _latest(evaluation: Record, metric: str) -> _Rank:
    return (0.0, 0.0, evaluation["round"])


SELECTION_RULES: dict[Selection, Callable[[Record, str], _Rank]] = {
    "source-validation": _best_on("validation"),
    "last": _latest,
    "oracle": _best_on("target"),
}


def select(records: Sequence[Record], rule: Selection, task: Task) -> Record | None:
    """Return the evaluation record that a rule prefers, or None when nothing was evaluated yet."""
    rank = SELECTION_RULES[rule]
    evaluations = [record for record in records if record["event"] == "evaluation"]
    return max(evaluations, key=lambda record: rank(record, PRIMARY[task]), default=None)
