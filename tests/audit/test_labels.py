"""Labels read off the gradient of a network's head."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unseen.audit.gradient_inversion import class_signals, count_correct_labels, infer_labels


def gradients(head: nn.Linear, features: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(head(features), labels), list(head.parameters())))


@pytest.fixture
def head() -> nn.Linear:
    layer = nn.Linear(16, 6)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("label", range(6))
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_label_of_a_single_image_is_exact(head, label, with_bias):
    features = torch.rand(1, 16, generator=torch.Generator().manual_seed(label))
    weight, bias = gradients(head, features, torch.tensor([label]))
    signals = class_signals(head, weight, bias if with_bias else None, features)
    assert infer_labels(signals, count=1, probabilities=torch.zeros(1, 6)).tolist() == [label]


def test_the_labels_of_a_batch_are_counted(head):
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 0, 0, 2, 5, 5, 4, 4])
    features, arbitrary = (torch.rand(8, 16, generator=generator) for _ in range(2))
    _, bias = gradients(head, features, labels)
    found = infer_labels(bias, count=8, probabilities=head(arbitrary).softmax(dim=1).detach())
    assert found.tolist() == sorted(labels.tolist())


def test_labels_found_counts_repetitions():
    assert count_correct_labels(torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2])) == 2
    assert count_correct_labels(torch.tensor([0]), torch.tensor([3])) == 0
