"""A fixed random projection of features, so that sums of their products are smaller."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.methods.closed_form.linear_head import LinearHead
from unseen.seeding import torch_generator


def projected_size(features: int, directions: int) -> int:
    """Return the number of features that are summed up; 0 directions, or not fewer than features: all."""
    return directions if 0 < directions < features else features


def draw_projection(features: int, directions: int, *, seed: int) -> Tensor | None:
    """Draw an orthonormal basis P (features x directions) of a random subspace; None if nothing is reduced.

    Clients and server draw the same from the run's seed, so it is never sent.
    """
    if projected_size(features, directions) == features:
        return None
    generator = torch_generator(seed, "projection of features", features, directions)
    drawn = torch.randn(features, directions, generator=generator, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(drawn).Q
    return basis


def unproject_head(head: LinearHead, projection: Tensor | None) -> LinearHead:
    """Return the head on f that equals a head on P^T f: W P^T, with the same bias."""
    return head if projection is None else LinearHead(head.weight @ projection.T, head.bias)
