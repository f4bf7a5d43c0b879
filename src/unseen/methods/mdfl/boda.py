"""The BoDA loss (Yang, Wang, Katabi 2022): pulls a class together across domains and keeps classes apart.

A prototype is the mean feature of one (domain, class) pair. Pairs without samples are left out of every sum
instead of being counted as a zero vector. Prototypes are constants: no gradient reaches them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NO_PAIR = -1


@dataclass(frozen=True)
class Prototypes:
    """Mean features of all (domain, class) pairs that occur.

    means             (pairs x features)
    counts            (pairs): number of samples of each mean
    domains, classes  (pairs): the pair of each mean
    place             (domains x classes): the row of a pair, or NO_PAIR
    """

    means: Tensor
    counts: Tensor
    domains: Tensor
    classes: Tensor
    place: Tensor

    @classmethod
    def of_table(cls, means: Tensor, counts: Tensor) -> Prototypes:
        """Pick the pairs that occur from tables (domains x classes x features) and (domains x classes)."""
        domains, classes = counts.nonzero(as_tuple=True)
        place = torch.full_like(counts, NO_PAIR, dtype=torch.int64)
        place[domains, classes] = torch.arange(len(domains), device=counts.device)
        return cls(means[domains, classes].detach(), counts[domains, classes], domains, classes, place)

    def mean_distance(self) -> float:
        """Compute the mean distance between two means; 1 where it has no positive value."""
        number = len(self.means)
        total = float(_distances(self.means.double(), self.means.double()).sum())
        return total / (number * (number - 1)) if number > 1 and total > 0 else 1.0

    def to(self, device: torch.device) -> Prototypes:
        """Copy the prototypes to a device."""
        parts = (self.means, self.counts, self.domains, self.classes, self.place)
        return Prototypes(*(part.to(device) for part in parts))

    def positives(self, targets: Tensor, domains: Tensor) -> Tensor:
        """Mark (samples x pairs) the pairs of the sample's class in other domains, which attract it.

        A sample whose own pair has no prototype has no count to calibrate by, and so no positives.
        """
        known = self.place[domains, targets] != NO_PAIR
        same_class = self.classes == targets[:, None]
        return same_class & (self.domains != domains[:, None]) & known[:, None]


def class_feature_sums(
    features: Tensor, targets: Tensor, domains: Tensor, *, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Sum and count features by (domain, class): float64 (domains x classes x features), int64 counts."""
    pair = domains * shape[1] + targets
    sums = features.new_zeros(shape[0] * shape[1], features.shape[1], dtype=torch.float64)
    sums.index_add_(0, pair, features.double())
    return sums.view(*shape, -1), torch.bincount(pair, minlength=len(sums)).view(shape)


def calibration(
    prototypes: Prototypes, targets: Tensor, domains: Tensor, *, nu: float, divide_by_count: bool
) -> Tensor:
    """Compute the factor on a sample's distance to each pair: p = (N_{d',c'} / N_{d,c})^nu (MDFL equation 8).

    divide_by_count  also divide by N_{d,c}, as the released code of BoDA does
    """
    own = prototypes.counts[prototypes.place[domains, targets]].double()[:, None]
    factor = (prototypes.counts.double() / own) ** nu
    return factor / own if divide_by_count else factor


def boda_loss(
    features: Tensor,
    targets: Tensor,
    domains: Tensor,
    prototypes: Prototypes,
    *,
    nu: float = 0.5,
    divide_by_count: bool = False,
    temperature: float = 1.0,
) -> Tensor:
    """Compute L_B of MDFL equation 8, the mean over the batch.

    A sample of the pair (d, c) gives the mean over its positives (d', c), d' != d, of
    -log( exp(-p E(z, mu_{d',c}) / t) / sum over all pairs but (d, c) of exp(-p E(z, mu) / t) ).
    A sample without positives gives zero.
    """
    positives = prototypes.positives(targets, domains)
    acting = positives.any(1)
    if not bool(acting.any()):
        return features.sum() * 0.0
    features, targets, domains = features[acting], targets[acting], domains[acting]
    distances = _distances(features, prototypes.means.to(features.dtype))
    factor = calibration(prototypes, targets, domains, nu=nu, divide_by_count=divide_by_count)
    logits = -distances * (factor / temperature).to(features.dtype)
    own = torch.nn.functional.one_hot(prototypes.place[domains, targets], len(prototypes.counts)).bool()
    normaliser = logits.masked_fill(own, -torch.inf).logsumexp(1, keepdim=True)
    chosen = positives[acting]
    attraction = torch.where(chosen, normaliser - logits, 0.0).sum(1) / chosen.sum(1)
    return attraction.sum() / len(acting)


def _distances(features: Tensor, means: Tensor) -> Tensor:
    """Compute Euclidean distances directly: dot products lose precision where points are close."""
    return torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
