"""Class-Means: the head that chooses the class whose mean feature is nearest, from sums, in one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods.base import Paper, register
from unseen.methods.closed_form.closed_form_method import ClosedFormMethod, SolvedHead
from unseen.methods.closed_form.feature_sums import BALANCE, Balance, Watch, feature_batches
from unseen.methods.closed_form.linear_head import SCALING, LinearHead, Scaling, standardize
from unseen.models import Network
from unseen.training import ClientWork

CLASS_SUMS = "feature sums by class"
"""A row (sum of f, sum of weights) per class, and a last row with the sums of squares of all features."""


@dataclass(frozen=True)
class ClassMeansSettings(Settings):
    """Settings of class-means."""

    scaling: Scaling = setting("common", SCALING)
    balance: Balance = setting("classes", BALANCE)
    logit_scale: float = setting(
        32.0, "distances are in units of the features' mean square over this number, for the softmax"
    )

    def __post_init__(self) -> None:
        if not self.logit_scale > 0:
            raise UsageError(f"setting 'logit_scale' of class-means must be above 0, not {self.logit_scale}")


@register
class ClassMeans(ClosedFormMethod[ClassMeansSettings]):
    """Nearest class mean: logits -|z - mu_c|^2 / 2 on standardized features z, up to what classes share.

    As a linear head: w_c = mu_c and b_c = -|mu_c|^2 / 2. Clients send sums and counts of their samples'
    features by class; for a class with one sample at a client, the sum is that sample's features.
    """

    name = "class-means"
    title = "Class-Means"
    summary = "the head in closed form: the class whose mean feature is nearest, one round, sums only"
    paper = Paper(
        title="Guiding The Last Layer in Federated Learning with Pre-Trained Models",
        authors="Legate, Bernier, Page-Caccia, Oyallon, Belilovsky",
        year=2023,
        venue="NeurIPS",
        url="https://arxiv.org/abs/2306.03937",
    )
    sends = ("model weights", "number of samples", CLASS_SUMS)
    merges = {CLASS_SUMS: "sum"}  # noqa: RUF012 (declared as the class's own in Method)

    def statistics(self, network: Network, work: ClientWork, watch: Watch) -> dict[str, Tensor]:
        """Sum up training samples by class."""
        if not work.train.task_type.has_classes:
            raise UsageError(
                "class-means needs classes, but this task is regression; use --method ridge, which regresses"
            )
        sums = torch.zeros(len(work.train.classes) + 1, network.feature_size + 1, dtype=torch.float64)
        for features, targets, weights in feature_batches(
            network, work.train, prepare=work.prepare, balance=self.settings.balance, watch=watch
        ):
            weighted = targets * weights[:, None]
            sums[:-1, :-1] += weighted.T @ features
            sums[:-1, -1] += weighted.sum(0)
            sums[-1, :-1] += weights @ features.square()
        return {CLASS_SUMS: sums}

    def describe_statistics(self, network: Network) -> dict[str, Tensor]:
        """Describe the sums by class."""
        head = network.head
        size = (head.out_features + 1, head.in_features + 1)
        return {CLASS_SUMS: torch.empty(size, dtype=torch.float64, device="meta")}

    def solve(
        self, sent: Sequence[Mapping[str, Tensor]], *, outputs: int, samples: float | None = None
    ) -> SolvedHead:
        """Compute the class means; a class without samples anywhere is never chosen."""
        whole = torch.stack([extras[CLASS_SUMS] for extras in sent]).sum(0)
        sums, counts, squares = whole[:-1, :-1], whole[:-1, -1], whole[-1, :-1]
        standardization = standardize(counts.sum(), sums.sum(0), squares, scaling=self.settings.scaling)
        known = counts > 0
        means = sums / counts.clamp(min=torch.finfo().tiny)[:, None] - standardization.mean
        means = torch.where(known[:, None], means / standardization.scale, 0.0)
        lengths = means.square().sum(1)
        bias = torch.where(known, -lengths / 2, -lengths.max() - 1)
        head = LinearHead(means, bias).scaled(self.settings.logit_scale / sums.shape[1])
        return SolvedHead(
            head.on_raw_features(standardization), {"distance_between_classes": _mean_distance(means[known])}
        )


def _mean_distance(means: Tensor) -> float | None:
    """Return the mean distance between two class means; None if there is only one."""
    return float(torch.pdist(means).mean()) if len(means) > 1 else None
