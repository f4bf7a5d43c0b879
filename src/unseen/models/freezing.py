"""Freezing: mark tensors of a network that are neither trained nor sent.

A mark is a plain attribute of the submodule that owns the tensor, so it survives deep copies, pickling and a
method's wrapping of the network. `Layout.of` leaves marked tensors out of the flat state: what is optimized,
sent, aggregated, protected and counted is the rest. `requires_grad` does not decide, since a method may turn
it off for a whole copy whose state must keep its layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.errors import UsageError
from unseen.models.frozen_statistics import keep_statistics

_MARK = "frozen_tensors"
"""Attribute of a submodule: the names of its own tensors that are frozen."""


def named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter, then every persistent buffer, under each of its names."""
    persistent = set(module.state_dict(keep_vars=True))
    yield from module.named_parameters(remove_duplicate=False)
    for name, buffer in module.named_buffers(remove_duplicate=False):
        if name in persistent:
            yield name, buffer


def freeze(module: nn.Module, names: Iterable[str]) -> None:
    """Mark the named parameters and buffers as frozen.

    Frozen parameters get no gradient. A batch-norm layer with frozen statistics normalizes with them in
    training too, as in evaluation.
    """
    for name in names:
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        if own in owner._parameters:
            owner.get_parameter(own).requires_grad_(False)
        else:
            owner.get_buffer(own)
        setattr(owner, _MARK, getattr(owner, _MARK, frozenset()) | {own})
        if isinstance(owner, _BatchNorm) and own == "running_mean":
            keep_statistics(owner)


def frozen_names(module: nn.Module) -> tuple[str, ...]:
    """Return the full names of all frozen tensors; a shared tensor is frozen under all of its names."""
    marked = {
        id(getattr(part, own)) for part in module.modules() for own in getattr(part, _MARK, frozenset())
    }
    return tuple(name for name, tensor in named_state(module) if id(tensor) in marked)


def select_trained(network: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze every tensor whose name matches none of the patterns (shell wildcards: `head.*`).

    A pattern that matches no parameter is refused.
    """
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no parameter of the model matches {pattern!r}; {_similar(pattern, names)}")
    freeze(
        network,
        [
            name
            for name, _ in named_state(network)
            if not any(fnmatchcase(name, pattern) for pattern in patterns)
        ],
    )


def _similar(pattern: str, names: Sequence[str]) -> str:
    """Name patterns that exist and look like one that does not."""
    parts = [".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 1)]
    known = list(dict.fromkeys([*(f"{part}.*" for part in parts), *names]))
    close = get_close_matches(pattern, known, n=4, cutoff=0.5) or [
        name for name in known if name.count(".") == 1 and name.endswith("*")
    ]
    return f"patterns that do: {', '.join((close or known)[:8])}"
