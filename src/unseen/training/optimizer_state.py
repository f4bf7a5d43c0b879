"""State of optimizers that clients keep from round to round: `--keep-optimizer-state`.

Momentum, moments and step counts are tensors in the client's state, which is never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.training.optimizers import FlatOptimizer


@runtime_checkable
class KeepableOptimizer(Protocol):
    """An optimizer whose state can be kept for the client's next round."""

    def read_state(self) -> dict[str, Tensor]:
        """Copy the state; empty before the first step."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a state that `read_state` returned."""


def read_state(optimizer: FlatOptimizer) -> dict[str, Tensor]:
    """Copy an optimizer's state; refuse one of a plugin that cannot give it."""
    return _require_keepable(optimizer).read_state()


def load_state(optimizer: FlatOptimizer, state: Mapping[str, Tensor]) -> None:
    """Let an optimizer continue with a state; an empty one changes nothing."""
    _require_keepable(optimizer).load_state(state)


def pick_state(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the entries whose names start with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _require_keepable(optimizer: FlatOptimizer) -> KeepableOptimizer:
    if not isinstance(optimizer, KeepableOptimizer):
        raise UsageError(
            f"{type(optimizer).__name__} has no read_state and load_state, so its state cannot be kept: "
            "leave out --keep-optimizer-state"
        )
    return optimizer
