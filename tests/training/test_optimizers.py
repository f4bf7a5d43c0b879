from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from unseen.models import FlatState
from unseen.training import LocalTrainingConfig
from unseen.training.optimizers import make_optimizer


@pytest.mark.parametrize(
    ("plan", "reference"),
    [
        (LocalTrainingConfig(lr=0.1, momentum=0.0), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            LocalTrainingConfig(lr=0.05, momentum=0.9, weight_decay=1e-2),
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
        ),
        (LocalTrainingConfig(lr=0.01, optimiser="adam"), lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            LocalTrainingConfig(lr=0.01, optimiser="adam", weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        ),
    ],
)
@pytest.mark.parametrize("in_gradient", [False, True])
def test_flat_optimisers_equal_torchs(plan, reference, in_gradient):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5))
    theirs = copy.deepcopy(ours)
    flat = FlatState(ours)
    optimiser = make_optimizer(plan, flat.parameters, flat.gradient, in_gradient=in_gradient)
    expected = reference(theirs.parameters())
    for _ in range(10):
        inputs = torch.randn(6, 3, 8, 8)
        optimiser.clear()
        ours(inputs).square().mean().backward()
        optimiser.step()
        expected.zero_grad()
        theirs(inputs).square().mean().backward()
        expected.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)
