"""Local training of a client: the options that every method shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unseen.errors import UsageError
from unseen.training.optimizers import OPTIMIZERS
from unseen.training.schedules import make_schedule


@dataclass(frozen=True)
class LocalTrainingConfig:
    """Budget and optimizer of one client's local training in one round.

    lr                 learning rate; that of the round in a configuration from `in_round`
    momentum           of SGD; other optimizers ignore it
    optimizer          a name in `OPTIMIZERS`
    batches_per_epoch  None = every sample once per epoch; a number = that many batches, going through
                       the data again where it is short
    label_smoothing    0 = plain cross-entropy; ignored for regression
    schedule           a name in `SCHEDULES`: how the learning rate changes over the rounds
    rounds             rounds of the whole run, which schedules refer to
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    batches_per_epoch: int | None = None
    label_smoothing: float = 0.0
    schedule: str = "constant"
    schedule_settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    rounds: int = 1

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, f"local epochs must be at least 1, not {self.epochs}")
        _require(self.batch_size >= 1, f"batch size must be at least 1, not {self.batch_size}")
        _require(self.lr > 0, f"learning rate must be above 0, not {self.lr}")
        _require(0 <= self.momentum < 1, f"momentum must be in [0, 1), not {self.momentum}")
        _require(self.weight_decay >= 0, f"weight decay must not be negative, not {self.weight_decay}")
        _require(
            self.batches_per_epoch is None or self.batches_per_epoch >= 1,
            f"batches per epoch must be at least 1, not {self.batches_per_epoch}",
        )
        _require(
            0 <= self.label_smoothing < 1, f"label smoothing must be in [0, 1), not {self.label_smoothing}"
        )
        OPTIMIZERS[self.optimizer]
        make_schedule(self.schedule, self.schedule_settings)

    def in_round(self, round: int) -> LocalTrainingConfig:
        """Return the configuration of a round, with the schedule's learning rate."""
        factor = make_schedule(self.schedule, self.schedule_settings).factor(round, self.rounds)
        return self if factor == 1 else replace(self, lr=self.lr * factor)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
