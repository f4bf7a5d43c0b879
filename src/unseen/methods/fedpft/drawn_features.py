"""The server's half of FedPFT: features drawn from mixtures, and the linear head on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.methods.closed_form.feature_sums import FeatureBatch, FeatureSums
from unseen.methods.closed_form.linear_head import LinearHead, standardize
from unseen.methods.closed_form.ridge_solution import RidgeProblem, choose_strength
from unseen.methods.fedpft.gaussian_mixtures import Mixture
from unseen.seeding import torch_generator

LOGIT_SCALE = 8.0
"""What a class vector has at its class, as in ridge: it changes no decision, only the softmax."""


class DrawnFeatures(NamedTuple):
    """Features (float64) and their classes."""

    features: Tensor
    labels: Tensor


def draw_features(
    sent: Iterable[tuple[str, Tensor, Tensor]], *, features: int, draws: float, seed: int
) -> DrawnFeatures:
    """Draw from the mixtures of every client and class, as many as it has samples times `draws`.

    Each has its own generator, so its draws do not depend on the other clients of the round.

    sent      (client, packed mixtures by class, counts by class) of every client
    features  number of features
    """
    parts = [torch.zeros(0, features, dtype=torch.float64)]
    labels = [torch.zeros(0, dtype=torch.int64)]
    for client, rows, counts in sent:
        for label in counts.nonzero().flatten().tolist():
            generator = torch_generator(seed, "fedpft: features", client, label)
            count = max(round(draws * int(counts[label])), 1)
            parts.append(Mixture.unpack(rows[label], features=features).sample(count, generator))
            labels.append(torch.full((count,), label))
    return DrawnFeatures(torch.cat(parts), torch.cat(labels))


class Fitted(NamedTuple):
    """A head, and the number that shows how it was found."""

    head: LinearHead
    number: float


def train_head(
    drawn: DrawnFeatures, *, outputs: int, lr: float, epochs: int, batch_size: int, generator: torch.Generator
) -> Fitted:
    """Train a head from zero by AdamW on standardized features; the number is its loss on all of them."""
    features, labels = drawn
    count = torch.tensor(float(len(labels)), dtype=torch.float64)
    standardization = standardize(count, features.sum(0), features.square().sum(0), scaling="common")
    inputs = ((features - standardization.mean) / standardization.scale).float()
    weight = torch.zeros(outputs, inputs.shape[1], requires_grad=True)
    bias = torch.zeros(outputs, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=lr)
    for _ in range(epochs):
        for positions in torch.randperm(len(labels), generator=generator).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(F.linear(inputs[positions], weight, bias), labels[positions]).backward()
            optimizer.step()
    with torch.no_grad():
        loss = float(F.cross_entropy(F.linear(inputs, weight, bias), labels))
    head = LinearHead(weight.detach().double(), bias.detach().double())
    return Fitted(head.on_raw_features(standardization), loss)


def regress_head(drawn: DrawnFeatures, *, outputs: int) -> Fitted:
    """Solve ridge regression; the number is its strength, chosen by generalized cross-validation."""
    features, labels = drawn
    sums = FeatureSums.zeros(features.shape[1], outputs)
    targets = LOGIT_SCALE * F.one_hot(labels, outputs).double()
    sums.add(FeatureBatch(features, targets, torch.ones(len(labels), dtype=torch.float64)))
    problem = RidgeProblem.of(sums, scaling="common")
    strength = choose_strength(problem, FeatureSums.zeros(features.shape[1], outputs)).strength
    return Fitted(problem.solve(strength), strength)
