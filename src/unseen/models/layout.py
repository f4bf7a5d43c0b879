"""The layout of a model's state: which tensor, of which kind, is where in the flat vector.

Parameters come first, then float buffers (batch-norm statistics), then integer buffers (batch counters,
held as whole floats). Weights of convolutions are stored channels last, the order in which CPUs convolve
fastest; every other tensor is in its own order, and so do the weights of a `BlockedStage`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError
from unseen.models.mkldnn import BlockedStage

LARGEST_EXACT_INTEGER = 2**24
"""Up to here a float32 holds every whole number."""


class Kind(StrEnum):
    """What a tensor of the state is; each kind has its own policy when clients are merged."""

    PARAMETER = "parameter"
    FLOAT_BUFFER = "float buffer"
    INTEGER_BUFFER = "integer buffer"


@dataclass(frozen=True)
class Entry:
    """The position of one named tensor in the vector, and whether it is stored channels last."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    start: int
    stop: int
    channels_last: bool = False

    @property
    def slice(self) -> slice:
        """The tensor's place in a flat vector."""
        return slice(self.start, self.stop)

    def view(self, vector: Tensor) -> Tensor:
        """The tensor as a view of a flat vector."""
        part = vector[self.start : self.stop]
        if self.channels_last:
            out, inner, height, width = self.shape
            return part.view(out, height, width, inner).permute(0, 3, 1, 2)
        return part.view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes, kinds and places of all tensors of a state.

    A tensor that a module uses under several names is in the vector once, under the first of them;
    `aliases` pairs every further name with that one.
    """

    entries: tuple[Entry, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Lay out a module's parameters and persistent buffers, in the order of their kinds."""
        first_names: dict[int, str] = {}
        found: list[tuple[str, Tensor, Kind]] = []
        aliases: list[tuple[str, str]] = []
        for name, tensor, kind in _named_state(module):
            if id(tensor) in first_names:
                aliases.append((name, first_names[id(tensor)]))
                continue
            first_names[id(tensor)] = name
            found.append((name, tensor, kind))
        entries: list[Entry] = []
        blocked = tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, BlockedStage))
        start = 0
        for name, tensor, kind in sorted(found, key=lambda item: list(Kind).index(item[2])):
            last = tensor.ndim == 4 and not name.startswith(blocked)
            entries.append(Entry(name, tuple(tensor.shape), kind, start, start + tensor.numel(), last))
            start += tensor.numel()
        return cls(tuple(entries), tuple(aliases))

    @property
    def size(self) -> int:
        """Length of the vector."""
        return self.entries[-1].stop if self.entries else 0

    def extent(self, kind: Kind) -> slice:
        """The part of the vector that holds tensors of one kind."""
        places = [entry.slice for entry in self.entries if entry.kind is kind]
        if not places:
            return slice(0, 0)
        return slice(places[0].start, places[-1].stop)

    @property
    def digest(self) -> str:
        """Identify the layout, so that two sites can tell whether they speak of the same model."""
        text = repr(
            [(entry.name, entry.shape, str(entry.kind), entry.channels_last) for entry in self.entries]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Copy a flat vector into named tensors, integers restored, ready for `load_state_dict`."""
        named = {
            entry.name: (
                entry.view(vector).round().long().contiguous()
                if entry.kind is Kind.INTEGER_BUFFER
                else entry.view(vector).clone(memory_format=torch.contiguous_format)
            )
            for entry in self.entries
        }
        named.update({name: named[first].clone() for name, first in self.aliases})
        return named


def _named_state(module: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    """Yield every parameter and persistent buffer under each of its names, with its kind."""
    persistent = set(module.state_dict(keep_vars=True))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield name, _require_float32(name, parameter), Kind.PARAMETER
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in persistent:
            whole = not (buffer.is_floating_point() or buffer.is_complex())
            kind = Kind.INTEGER_BUFFER if whole else Kind.FLOAT_BUFFER
            yield name, buffer if whole else _require_float32(name, buffer), kind


def _require_float32(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype is not torch.float32:
        seen = str(tensor.dtype).removeprefix("torch.")
        raise UnseenError(
            f"the model's tensor {name!r} is {seen}; a flat state holds float32: call .float() on the model"
        )
    return tensor
