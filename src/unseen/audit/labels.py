"""Labels read off a gradient, before any picture is rebuilt.

The gradient of the head's bias is, for cross-entropy, the mean of (predicted probability - 1 for the true
class). Of a single image only the true class has a negative entry (Zhao et al. 2020, iDLG); of a batch the
entries count how often each class occurs, up to the predicted probabilities (Wainakh et al. 2022, LLG).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def class_signals(head: nn.Linear, weight: Tensor, bias: Tensor | None, features: Tensor) -> Tensor:
    """For each class the mean of (probability - truth), from the head's gradient.

    features  the head's inputs that the network has for arbitrary pictures: without a bias, their mean tells
              by how much the rows of the weights' gradient are larger
    """
    if bias is not None:
        return bias
    scale = features.mean(dim=0).sum().abs().clamp(min=1e-12)
    return weight.sum(dim=1) / scale


def infer_labels(signals: Tensor, *, count: int, probabilities: Tensor) -> Tensor:
    """The classes of a batch of `count` images, in rising order.

    probabilities  the network's for arbitrary pictures: they stand in for those of the unknown batch
    """
    if count == 1:
        return signals.argmin().view(1).cpu()
    expected = (probabilities.mean(dim=0) - signals).cpu() * count
    counts = torch.zeros_like(expected)
    for _ in range(count):
        counts[(expected - counts).argmax()] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


def labels_found(inferred: Tensor, truth: Tensor) -> int:
    """How many of the true labels, repetitions counted, are among the inferred."""
    classes = range(int(max(inferred.max(), truth.max())) + 1)
    return sum(min(int((inferred == label).sum()), int((truth == label).sum())) for label in classes)
