"""Learning-rate schedules over the rounds of a run: `--schedule NAME`.

A schedule returns the factor of the learning rate in each round. It is constant within a round, so that
methods whose equations contain the learning rate (SCAFFOLD) stay exact; with `--schedule-per epoch` or `step`
it is asked in each local epoch or step instead, and "round" below means that. A plugin adds one with a class:

    @SCHEDULES.register("linear")
    @dataclass(frozen=True)
    class Linear(Schedule):
        '''Falls in a straight line towards zero.'''

        def factor(self, round: int, rounds: int) -> float:
            return 1 - (round - 1) / rounds
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from unseen.errors import UsageError
from unseen.evaluation.selection import mean_metric
from unseen.fileio import Record
from unseen.hparams import Settings, make_settings, setting
from unseen.registry import Registry
from unseen.tasks import goodness, primary_metric

Unit = Literal["round", "epoch", "step"]
UNITS = get_args(Unit)


@dataclass(frozen=True)
class Schedule(Settings, ABC):
    """Base class of all schedules; its fields are the settings that `--set-schedule` takes.

    watches_validation  whether `reaction` reads evaluations on the sources' validation samples
    """

    watches_validation: ClassVar[bool] = False

    @abstractmethod
    def factor(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate in a round, counted from 1, of a run of `rounds`."""

    def reaction(self, evaluations: Sequence[Record], task: str) -> float:
        """Return a further factor, which the server derives from the records of all evaluations so far."""
        return 1.0


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule", group="unseen.schedules", builtin=("unseen.training.schedules",)
)


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in all rounds."""

    def factor(self, round: int, rounds: int) -> float:
        """Return 1."""
        return 1.0


@SCHEDULES.register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Falls along half a cosine from the learning rate to `final` times it."""

    final: float = setting(0.0, "fraction of the learning rate that is left after the last round")

    def __post_init__(self) -> None:
        _require_fraction("final", self.final, zero=True)

    def factor(self, round: int, rounds: int) -> float:
        """Return final + (1 - final) (1 + cos(pi t / T)) / 2 with t = round - 1 and T = rounds."""
        fallen = (1 + math.cos(math.pi * min((round - 1) / rounds, 1.0))) / 2
        return self.final + (1 - self.final) * fallen


@SCHEDULES.register("exponential")
@dataclass(frozen=True)
class Exponential(Schedule):
    """Multiplies the learning rate by `gamma` after every round."""

    gamma: float = setting(0.95, "factor per round, above 0 and at most 1")

    def __post_init__(self) -> None:
        _require_fraction("gamma", self.gamma)

    def factor(self, round: int, rounds: int) -> float:
        """Return gamma^(round - 1)."""
        return float(self.gamma ** (round - 1))


@SCHEDULES.register("step")
@dataclass(frozen=True)
class Step(Schedule):
    """Multiplies the learning rate by `gamma` after every `every` rounds."""

    every: int = setting(10, "number of rounds between two drops")
    gamma: float = setting(0.1, "factor of each drop, above 0 and at most 1")

    def __post_init__(self) -> None:
        _require_fraction("gamma", self.gamma)
        if self.every < 1:
            raise UsageError(f"setting 'every' of the schedule must be at least 1, not {self.every}")

    def factor(self, round: int, rounds: int) -> float:
        """Return gamma^floor((round - 1) / every)."""
        return float(self.gamma ** ((round - 1) // self.every))


@SCHEDULES.register("cyclic")
@dataclass(frozen=True)
class Cyclic(Schedule):
    """Falls again and again in the last part of the run, each time ending where `--average swa` averages."""

    start: float = setting(0.75, "fraction of the rounds after which cycles start, in [0, 1)")
    every: int = setting(10, "rounds of a cycle")
    final: float = setting(0.01, "fraction of the learning rate in the last round of a cycle")

    def __post_init__(self) -> None:
        _require_fraction("final", self.final, zero=True)
        if not 0 <= self.start < 1:
            raise UsageError(
                f"setting 'start' of the schedule must be at least 0 and below 1, not {self.start}"
            )
        if self.every < 1:
            raise UsageError(f"setting 'every' of the schedule must be at least 1, not {self.every}")

    def factor(self, round: int, rounds: int) -> float:
        """Return 1 - t + t final with t = 1/c, 2/c, ..., 1 in the c rounds of a cycle; 1 before the first.

        Cycles end in the rounds floor(start T) + 1 + every, + 2 every, ..., which `swa` with the same start
        and the same `every` averages; that before the first cycle, which it averages too, has t = 1.
        """
        late = round - (math.floor(self.start * rounds) + 1)
        if late < 0:
            return 1.0
        part = ((late - 1) % self.every + 1) / self.every
        return 1 - part + part * self.final


@SCHEDULES.register("plateau")
@dataclass(frozen=True)
class Plateau(Schedule):
    """Multiplies the learning rate by `gamma` when validation of the sources no longer improves."""

    watches_validation = True
    metric: Literal["loss", "primary"] = setting(
        "loss", "what has to improve: the sources' validation loss, or the task's primary metric"
    )
    gamma: float = setting(0.1, "factor of each drop, above 0 and below 1")
    patience: int = setting(3, "number of evaluations without improvement that are tolerated")
    threshold: float = setting(1e-4, "smallest relative improvement that counts")
    cooldown: int = setting(0, "number of evaluations after a drop that are not counted")
    final: float = setting(0.0, "fraction of the learning rate that is the lowest")

    def __post_init__(self) -> None:
        _require_fraction("gamma", self.gamma)
        _require_fraction("final", self.final, zero=True)
        for name in ("patience", "cooldown", "threshold"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"setting {name!r} of the schedule must not be negative, not {getattr(self, name)}"
                )
        for name in ("gamma", "threshold"):
            if getattr(self, name) >= 1:
                raise UsageError(
                    f"setting {name!r} of the schedule must be below 1, not {getattr(self, name)}"
                )

    def factor(self, round: int, rounds: int) -> float:
        """Return 1: the rate changes by `reaction` alone."""
        return 1.0

    def reaction(self, evaluations: Sequence[Record], task: str) -> float:
        """Return gamma^drops, at least `final`; the rule is that of `torch.optim.lr_scheduler`."""
        name = "loss" if self.metric == "loss" else primary_metric(task)
        factor, best, bad, cooling = 1.0, -math.inf, 0, 0
        for evaluation in evaluations:
            value = goodness(name, mean_metric(evaluation, "validation", name))
            if value > best * (1 + math.copysign(self.threshold, best)):
                best, bad = value, 0
            else:
                bad += 1
            if cooling:
                cooling, bad = cooling - 1, 0
            if bad > self.patience:
                factor, cooling, bad = max(factor * self.gamma, self.final), self.cooldown, 0
        return factor


def make_schedule(name: str, settings: Mapping[str, Any] | None = None) -> Schedule:
    """Create a schedule by name with its settings checked."""
    return make_settings(SCHEDULES[name], settings or {}, owner=f"schedule {name!r}")


def _require_fraction(name: str, value: float, *, zero: bool = False) -> None:
    if not (0 < value <= 1 or (zero and value == 0)):
        low = "at least" if zero else "above"
        raise UsageError(f"setting {name!r} of the schedule must be {low} 0 and at most 1, not {value}")
