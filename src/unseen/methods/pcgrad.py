"""PCGrad: the server removes from every client's update what conflicts with another client's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.aggregation import (
    GradientSurgery,
    Reduction,
    ServerWork,
    apply_surgery,
    project_conflicts,
    unequal_weights,
)
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register


@dataclass(frozen=True)
class PCGradSettings(Settings):
    """Settings of PCGrad."""

    reduction: Reduction = setting(
        "mean",
        "mean of the projected updates, which keeps the length of a federated step, or their sum as in "
        "the paper",
    )


@register
class PCGrad(Method[PCGradSettings]):
    """Projecting conflicting gradients (algorithm 1), on the clients' updates g_k = w_k - w."""

    name = "pcgrad"
    title = "PCGrad"
    summary = "projects conflicting client updates onto each other's normal planes, then averages them"
    paper = Paper(
        title="Gradient Surgery for Multi-Task Learning",
        authors="Yu, Kumar, Gupta, Levine, Hausman, Finn",
        year=2020,
        venue="NeurIPS",
        url="https://arxiv.org/abs/2001.06782",
    )
    needs_individual_updates = True
    default_weighting = "uniform"
    fixed_weights = ""

    @property
    def surgery(self) -> GradientSurgery:
        """Project every update against the original ones it conflicts with, in random order, and add up."""
        return GradientSurgery(project_conflicts, "projection", self.settings.reduction)

    def server(self, work: ServerWork) -> Tensor:
        """Project, and step by the mean or the sum."""
        weights = unequal_weights(work.updates.samples, self.weighting)
        return apply_surgery(work, self.surgery, weights=weights)
