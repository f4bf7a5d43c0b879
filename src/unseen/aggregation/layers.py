"""Layers of a flat state, for comparing and averaging clients per layer: one tensor, or one module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from unseen.models import Kind, Layout

Grouping = Literal["tensor", "module"]
MAX_RECORDED_LAYERS = 24


@dataclass(frozen=True)
class Layer:
    """A named part of the state; the tensors of a module may be in several places."""

    name: str
    slices: tuple[slice, ...]


def split_layers(layout: Layout, grouping: Grouping = "tensor") -> tuple[Layer, ...]:
    """List the layers of a state: every named tensor, or every module with its own tensors together.

    Batch-norm statistics belong to layers; integer buffers (batch counters) belong to none, since a distance
    or a fraction of a count has no meaning. A tensor outside of any module is a separate layer.
    """
    places: dict[str, list[slice]] = {}
    for entry in layout.entries:
        if entry.kind is not Kind.INTEGER_BUFFER:
            module = entry.name.rpartition(".")[0]
            name = module if grouping == "module" and module else entry.name
            places.setdefault(name, []).append(entry.slice)
    return tuple(Layer(name, tuple(slices)) for name, slices in places.items())


def select_recorded_layers(layers: Sequence[Layer], layout: Layout) -> list[int]:
    """Choose the layers that records show: those with a kernel or matrix, a subsample in deep networks."""
    large = {entry.start for entry in layout.entries if len(entry.shape) > 1}
    found = [
        number for number, layer in enumerate(layers) if any(place.start in large for place in layer.slices)
    ]
    if len(found) <= MAX_RECORDED_LAYERS:
        return found or list(range(min(len(layers), MAX_RECORDED_LAYERS)))
    steps = torch.linspace(0, len(found) - 1, MAX_RECORDED_LAYERS).round().long().tolist()
    return [found[step] for step in steps]
