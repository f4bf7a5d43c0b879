"""RSC and SD against their definitions."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unseen.data.augmentation.head_penalties import challenge_features, penalize_logits


@pytest.fixture
def head() -> nn.Module:
    """A head that is not linear, whose gradient depends on the features."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def test_rsc_equals_its_steps_image_by_image(head: nn.Module) -> None:
    torch.manual_seed(1)
    features, targets = torch.randn(9, 12), torch.randint(4, (9,))
    ours = challenge_features(features, targets, head)
    kept, falls = [], []
    for feature, target in zip(features, targets.tolist(), strict=True):
        leaf = feature.clone().requires_grad_()
        head(leaf)[target].backward()
        gradient = leaf.grad.numpy()
        mask = torch.from_numpy(gradient < np.percentile(gradient, 100 * (1 - 1 / 3)))
        kept.append(mask)
        with torch.no_grad():
            falls.append(float(head(feature).softmax(0)[target] - head(feature * mask).softmax(0)[target]))
    limit = np.percentile(falls, 100 * (1 - 1 / 3))
    changed = 0
    for number, (mask, fall) in enumerate(zip(kept, falls, strict=True)):
        expected = features[number] if fall < limit else features[number] * mask
        torch.testing.assert_close(ours[number], expected)
        changed += not torch.equal(ours[number], features[number])
    assert changed == 3


def test_rsc_leaves_no_gradient_behind_and_lets_those_of_the_loss_through(head: nn.Module) -> None:
    features = torch.randn(6, 12, requires_grad=True)
    targets = torch.randint(4, (6,))
    changed = challenge_features(features, targets, head)
    assert all(parameter.grad is None for parameter in head.parameters())
    assert features.grad is None
    F.cross_entropy(head(changed), targets).backward()
    assert torch.equal(features.grad == 0, changed == 0)


def test_rsc_takes_probabilities_in_place_of_classes(head: nn.Module) -> None:
    features, targets = torch.randn(6, 12), torch.randint(4, (6,))
    ours = challenge_features(features, F.one_hot(targets, 4).float(), head)
    assert torch.equal(ours, challenge_features(features, targets, head))


def test_sd_is_the_mean_squared_logit() -> None:
    logits = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    assert float(penalize_logits(logits)) == pytest.approx(0.1 * (1 + 4 + 9 + 0) / 4)
    assert float(penalize_logits(logits, strength=2.0)) == pytest.approx(7.0)
