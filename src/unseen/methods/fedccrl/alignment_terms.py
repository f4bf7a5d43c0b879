"""Terms that align an image with its views: Jensen-Shannon of predictions, contrast of features by class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

_SMALLEST = 1e-7
"""Smallest mean probability, so that its logarithm is finite."""


def jensen_shannon(logits: Sequence[Tensor]) -> Tensor:
    """Compute the mean over samples and predictions p_i of KL(p_i || mean of all p_i), in nats."""
    logs = torch.stack([each.log_softmax(1) for each in logits])
    probabilities = logs.exp()
    middle = probabilities.mean(0).clamp(min=_SMALLEST).log()
    return (probabilities * (logs - middle)).sum(2).mean()


def supervised_contrast(
    view: Tensor, original: Tensor, targets: Tensor, *, temperature: float, own_positive: bool = False
) -> Tensor:
    """Contrast the features of a view and of its originals, 2n in all, by class (Khosla et al. 2020).

    The mean over all features z_i of the mean over positives z_p, features of the same class, of
    -log( e^(z_i z_p / tau) / sum_{a != i} e^(z_i z_a / tau) ), with features scaled to length 1.

    own_positive  count a feature as a positive of itself, as the released code of FedCCRL does
    """
    features = F.normalize(torch.cat([view, original]), dim=1)
    labels = torch.cat([targets, targets])
    similarity = features @ features.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    normalizer = similarity.masked_fill(itself, -torch.inf).logsumexp(1)
    positive = labels[:, None] == labels
    if not own_positive:
        positive = positive & ~itself
    attraction = torch.where(positive, similarity, 0.0).sum(1) / positive.sum(1)
    return (normalizer - attraction).mean()
