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
        places = {entry.name: entry for entry in layout.entries}
        for name, value in (("weight", self.weight), ("bias", self.bias)):
            place = _find(places, f"{head}.{name}", value)
            place.view(changed).copy_(value)
        return changed


def _find(places: dict[str, Entry], name: str, value: Tensor) -> Entry:
    place = places.get(name)
    if place is None or place.shape != tuple(value.shape):
        found = "none" if place is None else f"{place.shape}"
        raise UsageError(
            f"a closed-form head needs the tensor {name} of shape {tuple(value.shape)} among those that are "
            f"trained, found {found}: choose a --train that includes the head"
        )
    return place
