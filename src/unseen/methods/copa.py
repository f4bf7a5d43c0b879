"""COPA: one extractor, one classifier per domain; features must also work with the other domains'
classifiers.

The common extractor with the ensemble of all classifiers is deployed. See docs/methods/copa.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights, normalize_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods._shared import RunningMeans
from unseen.methods.base import Method, Paper, register
from unseen.models import Layout, Network
from unseen.training import ClientWork, LocalTrainingConfig, Update

Average = Literal["probabilities", "logits"]
_PLACE = "head.of_domain."


class HeadEnsemble(nn.Module):
    """Ensemble of classifiers instead of a network's linear head.

    domains  domains of the classifiers in `of_domain`, in the same order
    average  probabilities: the output is log(mean_k softmax(z_k)), whose softmax is that mean; logits: it is
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


COUNTS = "number of samples by domain"


@dataclass(frozen=True)
class COPASettings(Settings):
    """Settings of COPA."""

    strength: float = setting(
        1.0,
        "weight of the losses under the other domains' frozen classifiers; 0 = own classifier only",
        search=LogUniform(0.1, 10.0),
    )
    ensemble: Average = setting(
        "probabilities", "what the deployed model averages over classifiers: probabilities or logits"
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise UsageError(f"setting 'strength' of copa must not be negative, not {self.strength}")


@register
class COPA(Method[COPASettings]):
    """Collaborative optimization and aggregation, without its hybrid batch-instance normalization.

    A client of domain k trains the extractor F and its classifier C_k on
    L(C_k(F(x)), y) + strength * sum_{j != k} L(C_j(F(x)), y) with every C_j frozen as it arrived. The server
    averages F, and merges every C_k over the clients of its domain.
    """

    name = "copa"
    title = "COPA"
    summary = "shared extractor, a classifier for every domain, frozen ones of the others in local training"
    paper = Paper(
        title="Collaborative Optimization and Aggregation for Decentralized Domain Generalization "
        "and Adaptation",
        authors="Wu, Gong",
        year=2021,
        venue="ICCV",
        url="https://openaccess.thecvf.com/content/ICCV2021/html/"
        "Wu_Collaborative_Optimization_and_Aggregation_for_Decentralized_Domain_Generalization_and_Adaptation_"
        "ICCV_2021_paper.html",
    )
    no_average = "each domain's classifier comes from that domain's clients alone"
    needs_individual_updates = True
    sends = ("model weights", "number of samples", COUNTS)
    beyond_losses = "it sends its number of samples per domain"
    mixed_targets = True

    def build_for(self, network: Network, *, sources: Sequence[str], seed: int) -> nn.Module:
        """Build the network with one classifier per source domain, in the order of their names."""
        return with_heads(network, sorted(sources), average=self.settings.ensemble)

    def client(self, work: ClientWork) -> Update:
        """Train the extractor and the domain's own classifier; the other classifiers are frozen."""
        loss = _CollaborativeLoss(work, strength=self.settings.strength)
        work.fit(loss)
        counts = loss.places[work.train.domains].bincount(minlength=len(loss.ensemble.domains))
        return work.update(extras={COUNTS: counts}, diagnostics=loss.means.result())

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the number of samples per domain."""
        domains = len(head_places(Layout.of(module)))
        return {COUNTS: torch.empty(domains, dtype=torch.int64, device="meta")}

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse counts of other domains: the client would take part in their classifiers."""
        counts = update.extras[COUNTS]
        if bool((counts < 0).any()) or int(counts[list(own)].sum()) != update.samples:
            return f"says that it has {counts.tolist()} samples per domain, its census says otherwise"
        return (
            "" if int(counts.sum()) == update.samples else "counts samples of domains that it does not have"
        )

    def server(self, work: ServerWork) -> Tensor:
        """Average the extractors; merge every classifier over the clients of its domain."""
        updates = work.updates
        counts = torch.stack([extras[COUNTS] for extras in updates.extras]).double()
        if self.settings.weighting == "uniform":
            counts = counts.sign()
        merged = updates.mean(client_weights(updates.samples, self.settings.weighting))
        heads = head_places(updates.layout)
        for domain, places in heads.items():
            for place in places:
                merged[place] = (
                    normalize_weights(counts[:, domain]).float() @ updates.rows[:, place]
                    if counts[:, domain].any()
                    else work.weights[place]
                )
        work.diagnostics["spread of the classifiers"] = _spread(merged, list(heads.values()))
        return merged


class _CollaborativeLoss:
    """Loss of a client on a batch, with running means of its two terms.

    places  the position of every domain of the data in the ensemble
    """

    def __init__(self, work: ClientWork, *, strength: float) -> None:
        self.work, self.strength = work, strength
        self.network = cast(Network, work.module)
        self.ensemble = ensemble_of(work.module)
        self.frozen = FrozenHeads(self.ensemble)
        known = self.ensemble.domains
        self.places = torch.tensor([known.index(n) if n in known else -1 for n in work.train.domain_names])
        self.means = RunningMeans()

    def __call__(self, batch: Batch) -> Tensor:
        features = self.network.features(batch.inputs)
        places = self.places.to(batch.domains.device)[batch.domains]
        own = self.work.task_loss(self.ensemble.own(features, places), batch.targets)
        self.means.add("loss of the own classifier", own, samples=len(places))
        others = self.frozen.count - 1
        if not others or not self.strength:
            return own
        answers = self.frozen.others(features, places)
        frozen = self.work.task_loss(answers, batch.targets.repeat_interleave(others, dim=0))
        self.means.add("loss of the other classifiers", frozen, samples=len(places))
        return own + self.strength * others * frozen


def _spread(weights: Tensor, heads: list[list[slice]]) -> float:
    """Compute the mean distance of classifiers from their mean, relative to its norm: 0 if all are equal."""
    rows = torch.stack([torch.cat([weights[place] for place in places]) for places in heads]).double()
    middle = rows.mean(dim=0)
    return float((rows - middle).norm(dim=1).mean() / middle.norm().clamp_min(torch.finfo().tiny))
