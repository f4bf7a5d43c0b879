"""CORAL and MMD: the features of a client's domains should have one distribution."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import torch
from torch import Tensor

from unseen.hparams import LogUniform, setting
from unseen.methods.base import Paper, register
from unseen.methods.domain_objectives.domain_objective import (
    DomainBatch,
    DomainObjective,
    DomainSettings,
    require_not_negative,
)
from unseen.training import ClientWork

GAMMAS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Widths of the Gaussian kernels, whose values are added."""


@dataclass(frozen=True)
class FeatureSettings(DomainSettings):
    """Settings of CORAL."""

    penalty: float = setting(
        1.0,
        "gamma: weight of the distance; 0 is training on the task's loss; DomainBed draws it from 0.1 to 10",
        search=LogUniform(0.1, 10.0),
    )

    def __post_init__(self) -> None:
        require_not_negative("coral and mmd", penalty=self.penalty)


@dataclass(frozen=True)
class MMDSettings(FeatureSettings):
    """Settings of MMD."""

    penalty: float = setting(
        0.1,
        "gamma: weight of the distance; 0 is training on the task's loss; DomainBed has 1 and draws it from "
        "0.1 to 10",
        search=LogUniform(0.01, 10.0),
    )


F = TypeVar("F", FeatureSettings, MMDSettings)


class FeatureObjective(DomainObjective[F]):
    """Adds the mean distance of the features of any two of the client's domains."""

    def strength(self, work: ClientWork) -> float:
        """Return gamma."""
        return self.settings.penalty

    def penalty(self, batch: DomainBatch) -> Tensor:
        """Average the distances of all pairs of domains in the batch."""
        parts = batch.split(batch.features)
        return torch.stack([self.distance(one, other) for one, other in combinations(parts, 2)]).mean()

    @abstractmethod
    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        """Compute the distance of two sets of features (samples x features)."""


@register
class CORAL(FeatureObjective[FeatureSettings]):
    """Adds mean((mu_a - mu_b)^2) + mean((C_a - C_b)^2): the distance of means and covariances of features."""

    name = "coral"
    title = "CORAL"
    summary = "clients with several domains: features with equal means and covariances in each of them"
    paper = Paper(
        title="Deep CORAL: Correlation Alignment for Deep Domain Adaptation",
        authors="Sun, Saenko",
        year=2016,
        venue="ECCV Workshops",
        url="https://arxiv.org/abs/1607.01719",
    )

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        """Compare means and covariances."""
        means = (one.mean(0) - other.mean(0)).square().mean()
        return means + (_covariance(one) - _covariance(other)).square().mean()


def _covariance(features: Tensor) -> Tensor:
    centred = features - features.mean(0)
    return centred.T @ centred / (len(features) - 1)


@register
class MMD(FeatureObjective[MMDSettings]):
    """Adds the squared maximum mean discrepancy of features under a sum of Gaussian kernels."""

    name = "mmd"
    title = "MMD"
    summary = "clients with several domains: features with equal means in the space of Gaussian kernels"
    paper = Paper(
        title="Domain Generalization with Adversarial Feature Learning",
        authors="Li, Pan, Wang, Kot",
        year=2018,
        venue="CVPR",
        url="https://openaccess.thecvf.com/content_cvpr_2018/html/"
        "Li_Domain_Generalization_With_CVPR_2018_paper.html",
    )

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        """Compute mean k(a, a') + mean k(b, b') - 2 mean k(a, b)."""
        return _kernel(one, one).mean() + _kernel(other, other).mean() - 2 * _kernel(one, other).mean()


def _kernel(one: Tensor, other: Tensor) -> Tensor:
    """Compute sum_g exp(-g |a - b|^2) for all pairs."""
    distances = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.stack([torch.exp(-gamma * distances.square()) for gamma in GAMMAS]).sum(0)
