"""Averages of the global weights over rounds: `--average NAME`.

The server broadcasts the plain weights w_t of round t; an average of w_1, ..., w_t is what is evaluated,
selected and saved. Clients never see it, so it changes neither training nor what leaves them, and under
differential privacy it is post-processing.

Buffer policy: float buffers (batch-norm statistics) are averaged with the weights of the parameters, integer
buffers (batch counters) are those of the newest round. `judged_weights` holds it for every average.

A plugin adds one with a class:

    @AVERAGES.register("all-rounds")
    @dataclass(frozen=True)
    class AllRounds(Average):
        '''The mean of all rounds.'''

        def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
            add_to_mean(state, weights)

        def mean(self, state: State) -> Tensor | None:
            return state.get(MEAN)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.hparams import Settings, make_settings, setting
from unseen.models import Kind, Layout
from unseen.registry import Registry

State = MutableMapping[str, Tensor]
"""What an average keeps from round to round: named tensors, all of them in the checkpoint."""
MEAN, COUNT = "mean", "rounds"


@dataclass(frozen=True)
class Average(Settings, ABC):
    """Base class of all averages; its fields are the settings that `--set-average` takes.

    An object keeps nothing itself: everything is in the `state` that each call gets.

    needs_loss  whether `observe` is called, with the loss of the plain weights in every evaluation
    """

    needs_loss: ClassVar[bool] = False

    @abstractmethod
    def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
        """Take in the global weights after a round, counted from 1, of a run of `rounds`.

        `weights` may be kept, but neither it nor a kept tensor may be changed in place.
        """

    def observe(self, state: State, loss: float) -> None:
        """Take in the loss of the newest weights on the sources' validation data."""

    @abstractmethod
    def mean(self, state: State) -> Tensor | None:
        """Return the average; None while there is none, and the plain weights are judged."""

    def end(self, state: State) -> str:
        """Explain why no further round can change the average, which ends the run; "" while one can."""
        return ""

    def facts(self, state: State) -> dict[str, Any]:
        """Describe the average for an evaluation's record."""
        return {COUNT: int(state[COUNT])} if COUNT in state else {}


AVERAGES: Registry[type[Average]] = Registry(
    "average",
    group="unseen.averages",
    builtin=("unseen.aggregation.model_averaging", "unseen.aggregation.swad"),
)


def make_average(name: str, settings: Mapping[str, Any] | None = None) -> Average:
    """Create an average by name with its settings checked."""
    return make_settings(AVERAGES[name], settings or {}, owner=f"average {name!r}")


def judged_weights(average: Average, state: State, newest: Tensor, *, layout: Layout) -> Tensor:
    """Return the weights to evaluate, select and save: the average, or `newest` itself while there is none.

    Integer buffers are those of the newest weights, since a fraction of a count has no meaning.
    """
    mean = average.mean(state)
    if mean is None:
        return newest
    judged, counters = mean.clone(), layout.extent(Kind.INTEGER_BUFFER)
    judged[counters] = newest[counters]
    return judged


def join_means(mean: Tensor, count: int, other: Tensor, other_count: int) -> Tensor:
    """Return the mean of `count` + `other_count` vectors from the means of both parts."""
    return torch.lerp(mean, other, other_count / (count + other_count))


def add_to_mean(state: State, weights: Tensor) -> None:
    """Add one vector to the running mean in `state`."""
    count = int(state[COUNT]) if COUNT in state else 0
    state[MEAN] = join_means(state[MEAN], count, weights, 1) if count else weights.clone()
    state[COUNT] = torch.tensor(count + 1)


def require(fine: bool, name: str, expected: str, value: object) -> None:
    """Refuse a setting of an average that is out of range."""
    if not fine:
        raise UsageError(f"setting {name!r} of the average must be {expected}, not {value}")


@AVERAGES.register("none")
@dataclass(frozen=True)
class NoAverage(Average):
    """No average: the plain weights are evaluated, selected and saved."""

    def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
        """Keep nothing."""

    def mean(self, state: State) -> Tensor | None:
        """Return None."""
        return None


@AVERAGES.register("ema")
@dataclass(frozen=True)
class ExponentialAverage(Average):
    """Exponential moving average: each round counts `beta` times as much as the next one."""

    beta: float = setting(0.9, "factor by which a round's weight falls with each later round, in [0, 1)")

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "beta", "at least 0 and below 1", self.beta)

    def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
        """Update m_t = beta m_{t-1} + (1 - beta) w_t and keep the bias-corrected m_t / (1 - beta^t).

        That is a step of (1 - beta) / (1 - beta^t) from the former corrected average towards w_t.
        """
        count = int(state[COUNT]) + 1 if COUNT in state else 1
        rate = (1 - self.beta) / (1 - self.beta**count)
        state[MEAN] = torch.lerp(state[MEAN], weights, rate) if count > 1 else weights.clone()
        state[COUNT] = torch.tensor(count)

    def mean(self, state: State) -> Tensor | None:
        """Return the bias-corrected average."""
        return state.get(MEAN)


@AVERAGES.register("swa")
@dataclass(frozen=True)
class StochasticWeightAverage(Average):
    """Stochastic weight averaging: the mean of rounds in the last part of the run."""

    start: float = setting(0.75, "fraction of the rounds after which the average starts, in [0, 1)")
    every: int = setting(1, "rounds from one that is averaged to the next")

    def __post_init__(self) -> None:
        require(0 <= self.start < 1, "start", "at least 0 and below 1", self.start)
        require(self.every >= 1, "every", "at least 1", self.every)

    def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
        """Add the weights of rounds floor(start T) + 1, + 1 + every, + 1 + 2 every, ..."""
        late = round - (math.floor(self.start * rounds) + 1)
        if late >= 0 and late % self.every == 0:
            add_to_mean(state, weights)

    def mean(self, state: State) -> Tensor | None:
        """Return the mean of the rounds so far; None before the first."""
        return state.get(MEAN)


@AVERAGES.register("window")
@dataclass(frozen=True)
class MovingAverage(Average):
    """Moving average: the mean of the last `size` rounds."""

    size: int = setting(5, "number of rounds that are averaged; all of them are kept in memory")

    def __post_init__(self) -> None:
        require(self.size >= 1, "size", "at least 1", self.size)

    def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
        """Replace the weights of the oldest round."""
        state[f"slot {round % self.size}"] = weights.clone()
        state[COUNT] = torch.tensor(len(self._slots(state)))

    def mean(self, state: State) -> Tensor | None:
        """Return the mean; it is summed anew each time, so that no error adds up."""
        slots = self._slots(state)
        if not slots:
            return None
        total = slots[0].clone()
        for each in slots[1:]:
            total += each
        return total / len(slots)

    def _slots(self, state: State) -> list[Tensor]:
        return [state[f"slot {slot}"] for slot in range(self.size) if f"slot {slot}" in state]
