"""Flat views: a model's whole state as one contiguous vector with a layout.

Parameters come first, then float buffers (batch-norm statistics), then integer buffers (batch counters,
held as whole floats). Parameters and float buffers of the module *are* views of the vector, so loading
a model, stepping an optimiser and sending an update are operations on one array. Weights of
convolutions lie in the vector with channels last, the order in which CPUs convolve fastest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn


class Kind(StrEnum):
    """What a tensor of the state is; each kind has its own policy when clients are merged."""

    PARAMETER = "parameter"
    FLOAT_BUFFER = "float buffer"
    INTEGER_BUFFER = "integer buffer"


@dataclass(frozen=True)
class Entry:
    """Where one named tensor lies in the vector."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    start: int
    stop: int

    @property
    def slice(self) -> slice:
        """The tensor's place in a flat vector."""
        return slice(self.start, self.stop)

    def view(self, vector: Tensor) -> Tensor:
        """The tensor as a view of a flat vector."""
        part = vector[self.start : self.stop]
        if len(self.shape) == 4:
            out, inner, height, width = self.shape
            return part.view(out, height, width, inner).permute(0, 3, 1, 2)
        return part.view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes, kinds and places of all tensors of a state."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Lay out a module's parameters and persistent buffers, in the order of their kinds."""
        entries: list[Entry] = []
        start = 0
        for name, tensor, kind in sorted(_named_state(module), key=lambda item: list(Kind).index(item[2])):
            entries.append(Entry(name, tuple(tensor.shape), kind, start, start + tensor.numel()))
            start += tensor.numel()
        return cls(tuple(entries))

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
        text = repr([(entry.name, entry.shape, str(entry.kind)) for entry in self.entries])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def tensors(self, vector: Tensor) -> dict[str, Tensor]:
        """Split a flat vector into named tensors, integers restored, ready for `load_state_dict`."""
        return {
            entry.name: (
                entry.view(vector).round().long()
                if entry.kind is Kind.INTEGER_BUFFER
                else entry.view(vector).contiguous()
            )
            for entry in self.entries
        }


class FlatState:
    """A module bound to one vector: its parameters and float buffers become views of it.

    `gradient` is bound the same way to the gradients of the parameters, so a backward pass fills it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layout = Layout.of(module)
        device = next((tensor.device for _, tensor, _ in _named_state(module)), torch.device("cpu"))
        self.vector = torch.zeros(self.layout.size, device=device)
        parameters = self.layout.extent(Kind.PARAMETER)
        self.parameters = self.vector[parameters]
        self.gradient = torch.zeros_like(self.parameters)
        self._integers: list[tuple[Entry, Tensor]] = []
        for entry in self.layout.entries:
            owner_name, _, name = entry.name.rpartition(".")
            self._bind(entry, module.get_submodule(owner_name), name)

    def _bind(self, entry: Entry, owner: nn.Module, name: str) -> None:
        if entry.kind is Kind.INTEGER_BUFFER:
            buffer = owner.get_buffer(name)
            entry.view(self.vector).copy_(buffer)
            self._integers.append((entry, buffer))
            return
        view = entry.view(self.vector)
        if entry.kind is Kind.FLOAT_BUFFER:
            view.copy_(owner.get_buffer(name))
            setattr(owner, name, view)
            return
        parameter = owner.get_parameter(name)
        view.copy_(parameter.data)
        parameter.data = view
        if parameter.requires_grad:
            parameter.grad = entry.view(self.gradient)

    def load(self, vector: Tensor) -> None:
        """Give the module the state in `vector`."""
        if vector.shape != self.vector.shape:
            raise ValueError(f"state of length {len(vector)} does not fit a model of length {len(self.vector)}")
        self.vector.copy_(vector)
        for entry, buffer in self._integers:
            buffer.copy_(entry.view(self.vector).round())

    def read(self) -> Tensor:
        """Return a copy of the module's present state."""
        for entry, buffer in self._integers:
            entry.view(self.vector).copy_(buffer)
        return self.vector.clone()


def _named_state(module: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    """Yield every parameter and persistent buffer once, with its kind."""
    persistent = set(module.state_dict(keep_vars=True))
    for name, parameter in module.named_parameters():
        yield name, parameter, Kind.PARAMETER
    for name, buffer in module.named_buffers():
        if name in persistent:
            kind = Kind.FLOAT_BUFFER if buffer.is_floating_point() else Kind.INTEGER_BUFFER
            yield name, buffer, kind
