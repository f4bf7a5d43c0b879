"""Model selection: which round's model is the result. A pure function of the records.

`source-validation` (default) looks only at validation data of the source domains; `validation-domains` at
domains that were kept out of training for this purpose, as WILDS does; `last` at nothing; `oracle` at the
held-out domain itself, which no real user could, and is there only to compare with published numbers that
were chosen that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from unseen.data import Task
from unseen.evaluation.tally import PRIMARY

Selection = Literal["source-validation", "validation-domains", "last", "oracle"]
VALIDATION_DOMAIN = "validation-domain"
"""The split of samples whose whole domain is kept to choose the round."""
Record = dict[str, Any]
_Rank = tuple[float, float, int]


def mean_metric(evaluation: Record, split: str, metric: str) -> float:
    """Mean of a metric over the domains of a split, each domain counting the same."""
    values = [score["metrics"].get(metric) for score in evaluation["scores"] if score["split"] == split]
    finite = [value for value in values if value is not None and not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _value(evaluation: Record, split: str, metric: str) -> float:
    """What a round is judged by: over validation domains with groups as WILDS does, all samples together."""
    if split == VALIDATION_DOMAIN:
        for score in evaluation.get("groups", ()):
            if score["split"] == split and score["group"] is None:
                value = score["metrics"].get(metric)
                return math.nan if value is None else value
    return mean_metric(evaluation, split, metric)


def _best_on(split: str) -> Callable[[Record, str], _Rank]:
    """Rank by the primary metric, then by lower loss, then by the earlier round."""

    def rank(evaluation: Record, metric: str) -> _Rank:
        value, loss = (_value(evaluation, split, name) for name in (metric, "loss"))
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
    "validation-domains": _best_on(VALIDATION_DOMAIN),
    "last": _latest,
    "oracle": _best_on("target"),
}


def select(records: Sequence[Record], rule: Selection, task: Task) -> Record | None:
    """Return the evaluation record that a rule prefers, or None when nothing was evaluated yet."""
    rank = SELECTION_RULES[rule]
    evaluations = [record for record in records if record["event"] == "evaluation"]
    return max(evaluations, key=lambda record: rank(record, PRIMARY[task]), default=None)
