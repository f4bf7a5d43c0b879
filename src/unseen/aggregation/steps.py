"""The server's step: how far the global parameters follow the clients' mean."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.models import Kind, Layout


def step_towards(weights: Tensor, mean: Tensor, *, rate: float, layout: Layout) -> Tensor:
    """Move the parameters from `weights` by rate * (mean - weights); 1 gives the mean to the last bit.

    Buffers are taken from the mean whatever the rate is: a variance moved past the clients' own could
    become negative, and a fraction of a count means nothing.
    """
    moved = mean.clone()
    trained = layout.extent(Kind.PARAMETER)
    moved[trained] = torch.lerp(weights[trained], mean[trained], rate)
    return moved
