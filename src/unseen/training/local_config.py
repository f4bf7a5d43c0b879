"""How a client trains: the numbers every method shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unseen.errors import UsageError

Optimiser = Literal["sgd", "adam"]


@dataclass(frozen=True)
class LocalTrainingConfig:
    """Budget and optimiser of one client's local work in one round.

    batches_per_epoch  None = every sample once an epoch; a number = that many batches, going through
                       the data again where it is short
    label_smoothing    0 = plain cross-entropy; ignored for regression
    """

    epochs: int = 1
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 0.0
    optimiser: Optimiser = "sgd"
    batches_per_epoch: int | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, f"local epochs must be at least 1, not {self.epochs}")
        _require(self.batch_size >= 1, f"batch size must be at least 1, not {self.batch_size}")
        _require(self.lr > 0, f"learning rate must be above 0, not {self.lr}")
        _require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), not {self.momentum}")
        _require(self.weight_decay >= 0, f"weight decay must not be negative, not {self.weight_decay}")
        _require(self.optimiser in ("sgd", "adam"), f"optimiser must be sgd or adam, not {self.optimiser!r}")
        _require(
            self.batches_per_epoch is None or self.batches_per_epoch >= 1,
            f"batches per epoch must be at least 1, not {self.batches_per_epoch}",
        )
        _require(
            0 <= self.label_smoothing < 1, f"label smoothing must lie in [0, 1), not {self.label_smoothing}"
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
