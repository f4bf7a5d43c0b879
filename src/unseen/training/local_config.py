"""Local training of a client: the options that every method shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from unseen.errors import UsageError, unknown_name
from unseen.training.gradient_rules import GRADIENT_RULES
from unseen.training.optimizers import OPTIMIZERS
from unseen.training.schedules import UNITS, Unit, make_schedule


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
    schedule_per       whether the schedule's time is counted in rounds, local epochs or steps
    warmup             rounds in which the learning rate rises to its value, before the schedule begins;
                       below 1 a fraction of all rounds
    clip_norm          largest norm of a batch's gradient; None = not clipped
    head_lr            factor of the learning rate for the head
    sharpness          a name in `GRADIENT_RULES`: at which point a batch's gradient is computed
    rho                radius of that rule; None = its default
    keep_state         whether a client's optimizer continues with the state of the client's latest round
    round              the round, in a configuration from `in_round` whose learning rate changes within it
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
    schedule_per: Unit = "round"
    warmup: float = 0.0
    clip_norm: float | None = None
    head_lr: float = 1.0
    sharpness: str = "none"
    rho: float | None = None
    keep_state: bool = False
    round: int | None = None

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
        GRADIENT_RULES[self.sharpness]
        _require(
            self.clip_norm is None or self.clip_norm > 0,
            f"the norm that gradients are clipped to must be above 0, not {self.clip_norm}",
        )
        _require(self.head_lr > 0, f"factor of the head's learning rate must be above 0, not {self.head_lr}")
        _require(self.rho is None or self.rho > 0, f"rho must be above 0, not {self.rho}")
        _require(
            self.rho is None or GRADIENT_RULES[self.sharpness].perturbation is not None,
            "--rho is the radius of a sharpness rule: name one with --sharpness sam",
        )
        _require(
            not self.keep_state or OPTIMIZERS[self.optimizer].has_state(self),
            f"--keep-optimizer-state has no effect: {self.optimizer} without momentum has no state; use "
            "--momentum or another --optimizer",
        )
        if self.schedule_per not in UNITS:
            raise unknown_name("unit of the schedule", self.schedule_per, UNITS)
        _require(
            0 <= self.warmup < max(self.rounds, 1),
            f"warm-up must be at least 0 and shorter than the {self.rounds} rounds, not {self.warmup:g}; "
            "below 1 it is a fraction of all rounds",
        )
        make_schedule(self.schedule, self.schedule_settings)

    def effective_steps(self, steps: int) -> float:
        """Compute ||a||_1 of so many steps of the optimizer, see `optimizers.effective_steps`."""
        return OPTIMIZERS[self.optimizer].effective_steps(steps, momentum=self.momentum)

    @property
    def changes_within_round(self) -> bool:
        """Whether the learning rate may change between two steps of a round."""
        constant = self.schedule == "constant" and not self.warmup
        return self.schedule_per != "round" and not constant

    def in_round(self, round: int, *, reaction: float = 1.0) -> LocalTrainingConfig:
        """Return the configuration of a round, with its learning rate.

        reaction  the server's further factor, from `Schedule.reaction`
        """
        if self.changes_within_round:
            return replace(self, lr=self.lr * reaction, round=round)
        factor = self._factor(round - 1, self.rounds) * reaction
        return self if factor == 1 else replace(self, lr=self.lr * factor)

    def factor_within(self, epoch: int, step: int, *, steps: int) -> float:
        """Return the factor of the learning rate at a step of the round, for a configuration from `in_round`.

        epoch, step  the local epoch, and the step in it, both counted from 0
        steps        number of steps in a local epoch
        """
        if self.round is None:
            return 1.0
        per_round = self.epochs * (steps if self.schedule_per == "step" else 1)
        done = epoch * steps + step if self.schedule_per == "step" else epoch
        return self._factor((self.round - 1) * per_round + done, self.rounds * per_round)

    def _factor(self, time: int, total: int) -> float:
        """Return the factor after `time` units of a run of `total`: first the warm-up, then the schedule.

        The warm-up of w units is (t + 1) / (w + 1) at t = 0 .. w - 1, a straight line to 1 at t = w.
        """
        rounds = self.warmup if self.warmup >= 1 else self.warmup * self.rounds
        rising = max(round(rounds * total / self.rounds), 1) if self.warmup else 0
        if rising and time < rising:
            return (time + 1) / (rising + 1)
        schedule = make_schedule(self.schedule, self.schedule_settings)
        return schedule.factor(time - rising + 1, max(total - rising, 1))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
