"""Flat views: a model's whole state as one contiguous vector.

Parameters and float buffers of the module *are* views of the vector, so loading a model, stepping an
optimiser and sending an update are operations on one array.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from unseen.errors import UnseenError
from unseen.models.layout import LARGEST_EXACT_INTEGER, Entry, Kind, Layout

__all__ = ["Entry", "FlatState", "Kind", "Layout"]


class FlatState:
    """A module bound to one vector: its parameters and float buffers become views of it.

    `parameters` is the part of the vector that is trained; `gradient` is bound the same way to the
    gradients, so a backward pass adds to it. Clear it with `gradient.zero_()`, not with
    `zero_grad()`, which would cut the binding. Frozen parameters (`requires_grad` False) are in
    `parameters` too; their gradient stays zero.

    Bind a module after moving it to its device. `storage` is the vector to bind to (shared memory, say):
    it takes on the module's state. A deep copy of a bound module owns its tensors and is bound to
    nothing: bind it anew. A deep copy of the FlatState is bound to its own copy of the module.
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
        self._collect_integers()

    def load(self, vector: Tensor) -> None:
        """Give the module the state in `vector`."""
        if vector.shape != self.vector.shape:
            raise ValueError(
                f"state of length {vector.numel()} does not fit a model of length {len(self.vector)}"
            )
        self.vector.copy_(vector)
        for entry, buffer in self._integers:
            buffer.copy_(entry.view(self.vector).round())

    def read(self) -> Tensor:
        """Return a copy of the module's present state."""
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
