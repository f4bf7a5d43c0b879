"""Membership inference on the final model: the loss-threshold attack.

Yeom et al. 2018: samples with a small loss are taken for members. Members are the sources'
training samples, non-members samples of the same domains that were kept for validation and test.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from unseen.data import Indices, Samples
from unseen.engine import Experiment
from unseen.evaluation.evaluate import predict_batches
from unseen.models import Network
from unseen.seeding import numpy_generator

Real = npt.NDArray[np.float64]
MOST = 5000
"""Samples of each kind."""
DRAWS = 1000
RATES = (0.01, 0.1)


@dataclass(frozen=True)
class Interval:
    """A value with the 95 % interval that resampling both kinds of samples gives."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Membership:
    """The result of the attack.

    auc         probability that a member has the smaller loss than a non-member; 0.5 = guessing
    advantage   largest excess of the fraction of members found over that of non-members taken for members
    found       fraction of members found at this fraction of non-members taken for members;
                missing where there are too few non-members
    """

    members: int
    others: int
    member_loss: float
    other_loss: float
    auc: Interval
    advantage: Interval
    found: dict[str, Interval]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return asdict(self)


def member_test(experiment: Experiment, network: Network) -> Membership | None:
    """Attack the final model; return None if the sources kept no sample out of training."""
    members, others = _rows(experiment, "train"), _rows(experiment, "validation", "test")
    if not len(members) or not len(others):
        return None
    inside, outside = (losses(experiment, network, rows) for rows in (members, others))
    return judge(inside, outside, generator=numpy_generator(experiment.seed, "audit: resampling"))


def losses(experiment: Experiment, network: Network, rows: Indices) -> Real:
    """Compute the model's loss on each sample."""
    found = []
    samples = Samples(experiment.data, rows)
    for outputs, targets in predict_batches(network, samples, prepare=experiment.prepare):
        if not samples.task_type.has_classes:
            found.append((outputs.squeeze(1) - targets).square())
        else:
            found.append(F.cross_entropy(outputs, targets, reduction="none"))
    values: Real = torch.cat(found).double().cpu().numpy()
    return values


def judge(inside: Real, outside: Real, *, generator: np.random.Generator) -> Membership:
    """Compare the losses of members and of others."""
    rates = [rate for rate in RATES if len(outside) * rate >= 1]
    whole = _numbers(inside, outside, rates)
    draws = np.array(
        [
            _numbers(generator.choice(inside, len(inside)), generator.choice(outside, len(outside)), rates)
            for _ in range(DRAWS)
        ]
    )
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    intervals = [Interval(*map(float, ends)) for ends in zip(whole, low, high, strict=True)]
    return Membership(
        members=len(inside),
        others=len(outside),
        member_loss=float(inside.mean()),
        other_loss=float(outside.mean()),
        auc=intervals[0],
        advantage=intervals[1],
        found={f"{rate:g}": interval for rate, interval in zip(rates, intervals[2:], strict=True)},
    )


def _numbers(inside: Real, outside: Real, rates: list[float]) -> list[float]:
    """Compute AUC, advantage, and the fraction of members found at each rate of false alarms."""
    sorted_outside = np.sort(outside)
    below = np.searchsorted(sorted_outside, inside, side="left")
    upto = np.searchsorted(sorted_outside, inside, side="right")
    auc = 1 - (below + upto).mean() / (2 * len(outside))
    sorted_inside = np.sort(inside)
    limits = np.unique(sorted_inside)
    hits = np.searchsorted(sorted_inside, limits, side="right") / len(inside)
    alarms = np.searchsorted(sorted_outside, limits, side="right") / len(outside)
    advantage = max(float((hits - alarms).max()), 0.0)
    allowed = [sorted_outside[int(rate * len(outside))] for rate in rates]
    return [float(auc), advantage, *(float((inside < limit).mean()) for limit in allowed)]


def _rows(experiment: Experiment, *splits: str) -> Indices:
    federation = experiment.federation
    rows = np.concatenate(
        [experiment.evaluation_indices(domain, split) for domain in federation.sources for split in splits]
    )
    drawn = numpy_generator(experiment.seed, "audit: members", *splits).permutation(rows)[:MOST]
    return np.sort(drawn)
