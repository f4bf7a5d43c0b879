"""Classifiers of COPA: one per source domain on a common extractor, and their ensemble prediction."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.models import Layout, Network

Average = Literal["probabilities", "logits"]
_PLACE = "head.of_domain."


class HeadEnsemble(nn.Module):
    """Ensemble of classifiers in place of a network's linear head.

    domains  whose classifiers `of_domain` holds, in the same order
    average  probabilities: the answer is log(mean_k softmax(z_k)), whose softmax is that mean; logits: it is
             mean_k z_k. One output is a predicted value, and its mean is taken either way.
    """

    def __init__(self, head: nn.Linear, domains: Sequence[str], *, average: Average) -> None:
        super().__init__()
        self.domains, self.average = tuple(domains), average
        self.in_features, self.out_features = head.in_features, head.out_features
        self.of_domain = nn.ModuleList(copy.deepcopy(head) for _ in domains)

    def forward(self, features: Tensor) -> Tensor:
        """Predict with all classifiers together."""
        answers = torch.stack([head(features) for head in self.of_domain])
        if self.average == "logits" or self.out_features == 1:
            return answers.mean(dim=0)
        return answers.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(self.domains))

    def own(self, features: Tensor, domains: Tensor) -> Tensor:
        """Predict every sample with the classifier of its domain (a position in `domains`)."""
        present = domains.unique().tolist()
        if len(present) == 1:
            return cast(Tensor, self.of_domain[present[0]](features))
        answers = torch.stack([head(features) for head in self.of_domain], dim=1)
        return answers[torch.arange(len(domains), device=domains.device), domains]


class FrozenHeads:
    """Frozen copies of all classifiers, unaffected by training."""

    def __init__(self, ensemble: HeadEnsemble) -> None:
        heads = [cast(nn.Linear, head) for head in ensemble.of_domain]
        self.count = len(heads)
        self.weight = torch.cat([head.weight.detach() for head in heads])
        self.bias = torch.cat([head.bias.detach() for head in heads])

    def others(self, features: Tensor, domains: Tensor) -> Tensor:
        """Predict with the classifiers of all other domains, sample by sample: (n * (K - 1) x outputs)."""
        answers = F.linear(features, self.weight, self.bias).view(len(features), self.count, -1)
        everyone = torch.arange(self.count, device=domains.device)
        return answers[everyone[None] != domains[:, None]]


def with_heads(network: Network, domains: Sequence[str], *, average: Average) -> Network:
    """Copy the network with one classifier per domain; each starts as the network's own head."""
    copied = copy.deepcopy(network)
    copied.head = cast(nn.Linear, HeadEnsemble(network.head, domains, average=average))
    return copied


def ensemble_of(network: nn.Module) -> HeadEnsemble:
    """Return the classifiers of a network made by `with_heads`."""
    return cast(HeadEnsemble, cast(Network, network).head)


def head_places(layout: Layout) -> dict[int, list[slice]]:
    """Find the slices of each domain's classifier in a flat state."""
    places: dict[int, list[slice]] = {}
    for entry in layout.entries:
        if entry.name.startswith(_PLACE):
            number = int(entry.name.removeprefix(_PLACE).split(".")[0])
            places.setdefault(number, []).append(entry.slice)
    return places
