"""Linear heads on standardized features, rewritten as heads on the features themselves.

z = (f - mean) / std is affine in f, so a head on z is one on f: the deployed network needs no extra layer.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.models import Entry, Layout

Scaling = Literal["common", "each"]
SCALING = "features are divided by one `common` root mean square, or `each` by its own std"
_FLAT = 1e-12
"""A variance below this fraction of the mean square is rounding error: the feature is constant."""


class Standardization(NamedTuple):
    """Mean and scale of features: z = (f - mean) / scale."""

    mean: Tensor
    scale: Tensor


def standardize(count: Tensor, sums: Tensor, squares: Tensor, *, scaling: Scaling) -> Standardization:
    """Compute the standardization of features from sums over their samples.

    A constant feature gets scale 1: it is 0 once centred.
    """
    mean, square = sums / count, squares / count
    variance = (square - mean.square()).clamp(min=0)
    varies = variance > _FLAT * square
    variance = torch.where(varies, variance, 0.0)
    if scaling == "common":
        variance = torch.full_like(variance, float(variance.mean()))
    return Standardization(mean, torch.where(variance > 0, variance, 1.0).sqrt())


class LinearHead(NamedTuple):
    """Weight (outputs x features) and bias of a linear layer, in float64 until it is written."""

    weight: Tensor
    bias: Tensor

    def on_raw_features(self, standardization: Standardization) -> LinearHead:
        """Return the head on f that equals this one on z = (f - mean) / scale."""
        mean, scale = standardization
        weight = self.weight / scale
        return LinearHead(weight, self.bias - weight @ mean)

    def scaled(self, factor: float) -> LinearHead:
        """Multiply all outputs by a factor."""
        return LinearHead(self.weight * factor, self.bias * factor)

    def write(self, weights: Tensor, layout: Layout, *, head: str = "head") -> Tensor:
        """Return a copy of a flat state with this head; every other number is as it was.

        head  the layer's name in the module
        """
        changed = weights.clone()
        for name, value in (("weight", self.weight), ("bias", self.bias)):
            _find(layout, f"{head}.{name}").view(changed).copy_(value)
        return changed


def count_outputs(layout: Layout, *, head: str = "head") -> int:
    """Count the outputs of the head in a state."""
    return _find(layout, f"{head}.bias").shape[0]


def count_features(layout: Layout, *, head: str = "head") -> int:
    """Count the inputs of the head in a state."""
    return _find(layout, f"{head}.weight").shape[1]


def _find(layout: Layout, name: str) -> Entry:
    for entry in layout.entries:
        if entry.name == name:
            return entry
    raise UsageError(
        f"a head in closed form needs {name} among the tensors that are trained: choose a --train that "
        "includes the head"
    )
