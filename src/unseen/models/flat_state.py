"""A model's state as one contiguous vector, and the layout of the tensors in it.

Parameters and float buffers of the module are views of the vector, so loading a model, an optimizer step and
sending an update are operations on one array. Parameters come first, then float buffers (batch-norm
statistics), then integer buffers (batch counters, stored as whole floats). Weights of convolutions are stored
channels last, the order in which CPUs convolve fastest, except in a `BlockedStage`. Tensors that are marked
as frozen (models/freezing.py) are not in the vector and stay as they are.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError
from unseen.models.freezing import frozen_names, named_state
from unseen.models.mkldnn import BlockedStage

LARGEST_EXACT_INTEGER = 2**24
"""Up to here float32 represents every integer exactly."""


class Kind(StrEnum):
    """Kind of a tensor of the state; each has its own policy when clients are merged."""

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
        """Return the tensor as a view of a flat vector."""
        part = vector[self.start : self.stop]
        if self.channels_last:
            out, inner, height, width = self.shape
            return part.view(out, height, width, inner).permute(0, 3, 1, 2)
        return part.view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes, kinds and positions of all tensors of a state, without the frozen ones.

    A tensor that a module uses under several names is in the vector once, under the first of them;
    `aliases` pairs every further name with that one.
    """

    entries: tuple[Entry, ...]
    aliases: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Lay out a module's trained parameters and persistent buffers, in the order of their kinds."""
        first_names: dict[int, str] = {}
        found: list[tuple[str, Tensor, Kind]] = []
        aliases: list[tuple[str, str]] = []
        frozen = set(frozen_names(module))
        for name, tensor, kind in _named_state(module):
            if name in frozen:
                continue
            if id(tensor) in first_names:
                aliases.append((name, first_names[id(tensor)]))
                continue
            first_names[id(tensor)] = name
            found.append((name, tensor, kind))
        entries: list[Entry] = []
        blocked = _blocked_prefixes(module)
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
        """Return the part of the vector with the tensors of one kind."""
        places = [entry.slice for entry in self.entries if entry.kind is kind]
        if not places:
            return slice(0, 0)
        return slice(places[0].start, places[-1].stop)

    @property
    def digest(self) -> str:
        """Identify the layout, so that two sites can check whether they use the same model."""
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


def whole_state(module: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Copy a flat vector and the module's frozen tensors into named tensors: all of its `state_dict`."""
    trained = Layout.of(module).tensors(vector)
    return {
        name: trained[name]
        if name in trained
        else tensor.to(vector.device).clone(memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }


def model_digest(module: nn.Module) -> str:
    """Identify a module's layout and its frozen values, which are not sent and must be equal at all sites.

    Of every frozen tensor a few digits of one sum are compared, since machines may differ in the last bits.
    """
    layout, frozen = Layout.of(module).digest, frozen_names(module)
    if not frozen:
        return layout
    state, sums = module.state_dict(), []
    for name in frozen:
        values = state[name].detach().double().cpu().flatten()
        sums.append((name, f"{float(values @ torch.arange(len(values)).double().cos()):.2e}"))
    return f"{layout}-{hashlib.sha256(repr(sums).encode()).hexdigest()[:16]}"


def _named_state(module: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    """Yield every parameter and persistent buffer under each of its names, with its kind."""
    for name, tensor in named_state(module):
        if isinstance(tensor, nn.Parameter):
            yield name, _require_float32(name, tensor), Kind.PARAMETER
        else:
            whole = not (tensor.is_floating_point() or tensor.is_complex())
            kind = Kind.INTEGER_BUFFER if whole else Kind.FLOAT_BUFFER
            yield name, tensor if whole else _require_float32(name, tensor), kind


def _blocked_prefixes(module: nn.Module) -> tuple[str, ...]:
    """Return the prefixes of the names of tensors whose convolutions take maps in blocks."""
    return tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, BlockedStage))


def _require_float32(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype is not torch.float32:
        seen = str(tensor.dtype).removeprefix("torch.")
        raise UnseenError(
            f"the model's tensor {name!r} is {seen}; a flat state is float32: call .float() on the model"
        )
    return tensor


__all__ = ["Entry", "FlatState", "Kind", "Layout", "model_digest", "whole_state"]


class FlatState:
    """A module bound to one vector: its parameters and float buffers become views of it.

    `parameters` is the part of the vector that is trained; `gradient` is bound the same way to the
    gradients, so a backward pass adds to it. Clear it with `gradient.zero_()`, not with
    `zero_grad()`, which would cut the binding. Parameters with `requires_grad` False are in `parameters` too,
    with a gradient that stays zero, unless they are marked as frozen.

    Bind a module after moving it to its device. `storage` is the vector to bind to (such as shared memory):
    the module's state is copied to it. A deep copy of a bound module owns its tensors and is bound to
    nothing: bind it again. A deep copy of the FlatState is bound to its own copy of the module.
    """

    def __init__(self, module: nn.Module, *, storage: Tensor | None = None) -> None:
        self.module = module
        self.layout = Layout.of(module)
        self.vector = self._make_vector() if storage is None else self._check_shape(storage)
        self.parameters = self.vector[self.layout.extent(Kind.PARAMETER)]
        self.gradient = torch.zeros_like(self.parameters)
        self._integers: list[tuple[Entry, Tensor]] = []
        with torch.no_grad():
            for entry in self.layout.entries:
                self._bind(entry)
        self._order_frozen_weights()
        self._collect_integers()

    def load(self, vector: Tensor) -> None:
        """Load the state in `vector` into the module."""
        if vector.shape != self.vector.shape:
            raise ValueError(
                f"state of length {vector.numel()} does not fit a model of length {len(self.vector)}"
            )
        self.vector.copy_(vector)
        for entry, buffer in self._integers:
            buffer.copy_(entry.view(self.vector).round())

    def read(self) -> Tensor:
        """Return a copy of the module's current state."""
        self._collect_integers()
        return self.vector.clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> FlatState:
        return FlatState(copy.deepcopy(self.module, memo))

    def _make_vector(self) -> Tensor:
        tensors = [*self.module.parameters(), *self.module.buffers()]
        return torch.zeros(self.layout.size, device=tensors[0].device if tensors else None)

    def _check_shape(self, storage: Tensor) -> Tensor:
        wanted = (self.layout.size,)
        if (
            tuple(storage.shape) != wanted
            or storage.dtype is not torch.float32
            or not storage.is_contiguous()
        ):
            raise ValueError(
                f"storage must be a contiguous float32 vector of length {self.layout.size}, "
                f"not {storage.dtype} of shape {tuple(storage.shape)}"
            )
        return storage

    def _bind(self, entry: Entry) -> None:
        view = entry.view(self.vector)
        owner, name = self._owner(entry.name)
        if entry.kind is Kind.INTEGER_BUFFER:
            self._integers.append((entry, owner.get_buffer(name)))
        elif entry.kind is Kind.FLOAT_BUFFER:
            view.copy_(owner.get_buffer(name))
            for alias in (
                entry.name,
                *(alias for alias, first in self.layout.aliases if first == entry.name),
            ):
                holder, attribute = self._owner(alias)
                setattr(holder, attribute, view)
        else:
            parameter = owner.get_parameter(name)
            view.copy_(parameter)
            parameter.data = view
            parameter.grad = entry.view(self.gradient) if parameter.requires_grad else None

    def _order_frozen_weights(self) -> None:
        """Store frozen weights of convolutions in the same order as trained ones, for speed."""
        frozen, blocked = set(frozen_names(self.module)), _blocked_prefixes(self.module)
        for name, parameter in self.module.named_parameters():
            if name in frozen and parameter.ndim == 4 and not name.startswith(blocked):
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        owner, _, attribute = name.rpartition(".")
        return self.module.get_submodule(owner), attribute

    def _collect_integers(self) -> None:
        for entry, buffer in self._integers:
            if buffer.numel() and int(buffer.long().abs().max()) > LARGEST_EXACT_INTEGER:
                raise UnseenError(
                    f"the model's whole-number tensor {entry.name!r} holds a value above "
                    f"{LARGEST_EXACT_INTEGER}, which a flat state cannot hold exactly"
                )
            entry.view(self.vector).copy_(buffer)
