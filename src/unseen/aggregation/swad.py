"""Federated SWAD: the mean of the rounds in a window that the sources' validation loss opens and closes.

Cha et al., SWAD: Domain Generalization by Seeking Flat Minima, NeurIPS 2021, algorithm 1, with rounds in the
place of iterations. With E_i the loss of the plain weights in the i-th evaluation, the window

    opens at   t_s = i - N_s + 1  as soon as  E_{t_s} = min(E_{t_s}, ..., E_i);  l = r mean(E_{t_s}, ..., E_i)
    closes at  t_e = i - N_e      as soon as  l < min(E_{i-N_e+1}, ..., E_i)

Evaluation i stands for all rounds since the one before, so that every round of the window counts the same
(the paper's D, "densely") whatever `--evaluate-every` is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unseen.aggregation.model_averaging import AVERAGES, Average, State, add_to_mean, join_means, require
from unseen.aggregation.model_averaging import COUNT as SEGMENT_ROUNDS
from unseen.aggregation.model_averaging import MEAN as SEGMENT
from unseen.hparams import setting

ROUND = "newest round"
LOSS = "newest loss"
QUEUE, EVALUATIONS = "queue", "evaluations"
LIMIT, FIRST, LAST = "limit", "first round", "last round"
VALLEY, VALLEY_ROUNDS = "valley", "rounds of the valley"
BEYOND, BEYOND_ROUNDS, BEYOND_EVALUATIONS = "beyond", "rounds beyond", "evaluations beyond"
CLOSED = "closed"


@AVERAGES.register("swad")
@dataclass(frozen=True)
class Swad(Average):
    """SWAD: the mean of all rounds between a minimum of the sources' validation loss and overfitting.

    Memory: N_s states before the window opens, then two. It can close only after N_e >= N_s losses above the
    limit in a row, so the mean up to the last evaluation within the limit (the valley) and the mean of those
    beyond it are enough.
    """

    needs_loss: ClassVar[bool] = True
    n_converge: int = setting(3, "N_s: the window opens at a loss that the next N_s - 1 do not fall below")
    n_tolerance: int = setting(6, "N_e: it closes after N_e losses above the limit in a row; at least N_s")
    tolerance: float = setting(1.3, "r: the limit is r times the mean of the first N_s losses; at least 1")

    def __post_init__(self) -> None:
        require(self.n_converge >= 1, "n_converge", "at least 1", self.n_converge)
        require(
            self.n_tolerance >= self.n_converge,
            "n_tolerance",
            f"at least n_converge ({self.n_converge})",
            self.n_tolerance,
        )
        require(self.tolerance >= 1, "tolerance", "at least 1", self.tolerance)

    def collect(self, state: State, weights: Tensor, *, round: int, rounds: int) -> None:
        """Add a round to the mean of those since the last evaluation."""
        if CLOSED not in state:
            add_to_mean(state, weights)
        state[ROUND] = torch.tensor(round)

    def observe(self, state: State, loss: float) -> None:
        """Open the window, extend it, or close it; a loss that is not a number counts as infinite."""
        loss = math.inf if math.isnan(loss) else loss
        state[LOSS] = torch.tensor(loss, dtype=torch.float64)
        if CLOSED in state:
            return
        segment, size = state.pop(SEGMENT), int(state.pop(SEGMENT_ROUNDS))
        if LIMIT in state:
            self._extend(state, segment, size, loss, int(state[ROUND]))
            if _number(state, BEYOND_EVALUATIONS) >= self.n_tolerance:
                state[CLOSED] = state[ROUND]
                for key in (BEYOND, BEYOND_ROUNDS, BEYOND_EVALUATIONS):
                    state.pop(key)
        else:
            self._await_opening(state, segment, size, loss)

    def mean(self, state: State) -> Tensor | None:
        """Return the mean of the window so far (t_e = now while it is open); None before it opens."""
        if VALLEY not in state:
            return None
        if not _number(state, BEYOND_ROUNDS):
            return state[VALLEY]
        return join_means(state[VALLEY], int(state[VALLEY_ROUNDS]), state[BEYOND], int(state[BEYOND_ROUNDS]))

    def end(self, state: State) -> str:
        """Say that the window is closed."""
        if CLOSED not in state:
            return ""
        return f"SWAD's window, rounds {int(state[FIRST])} to {int(state[LAST])}, is closed"

    def facts(self, state: State) -> dict[str, Any]:
        """Record the plain weights' loss and, once it is open, the window's rounds and limit."""
        found: dict[str, Any] = {"loss": float(state[LOSS])}
        if LIMIT in state:
            last = state[LAST] if CLOSED in state else state[ROUND]
            found |= {"limit": float(state[LIMIT]), "first": int(state[FIRST]), "last": int(last)}
            found["rounds"] = int(state[VALLEY_ROUNDS]) + _number(state, BEYOND_ROUNDS)
        return found

    def _await_opening(self, state: State, segment: Tensor, size: int, loss: float) -> None:
        """Keep the last N_s evaluations, and open the window if the first of them has the lowest loss."""
        newest = torch.tensor([[loss, size, int(state[ROUND])]], dtype=torch.float64)
        kept = 1 - self.n_converge
        table, queue = newest, segment[None]
        if QUEUE in state and kept:
            table = torch.cat([state[EVALUATIONS][kept:], newest])
            queue = torch.cat([state[QUEUE][kept:], queue])
        losses = table[:, 0]
        limit = self.tolerance * float(losses.mean())
        if len(table) < self.n_converge or losses[0] > losses.min() or not math.isfinite(limit):
            state[QUEUE], state[EVALUATIONS] = queue, table
            return
        for key in (QUEUE, EVALUATIONS):
            state.pop(key, None)
        rows = [(row[0], int(row[1]), int(row[2])) for row in table.tolist()]
        (_, size, last), *others = rows
        state[LIMIT] = torch.tensor(limit, dtype=torch.float64)
        state[FIRST], state[LAST] = torch.tensor(last - size + 1), torch.tensor(last)
        state[VALLEY], state[VALLEY_ROUNDS] = queue[0].clone(), torch.tensor(size)
        for part, (former, size, last) in zip(queue[1:], others, strict=True):
            self._extend(state, part, size, former, last)

    def _extend(self, state: State, segment: Tensor, size: int, loss: float, last: int) -> None:
        """Add an evaluation's rounds beyond the valley, or all to it where the loss is within the limit."""
        beyond = _number(state, BEYOND_ROUNDS)
        joined = join_means(state[BEYOND], beyond, segment, size) if beyond else segment.clone()
        if loss > float(state[LIMIT]):
            state[BEYOND], state[BEYOND_ROUNDS] = joined, torch.tensor(beyond + size)
            state[BEYOND_EVALUATIONS] = torch.tensor(_number(state, BEYOND_EVALUATIONS) + 1)
            return
        valley = int(state[VALLEY_ROUNDS])
        state[VALLEY] = join_means(state[VALLEY], valley, joined, beyond + size)
        state[VALLEY_ROUNDS] = torch.tensor(valley + beyond + size)
        state[LAST] = torch.tensor(last)
        for key in (BEYOND, BEYOND_ROUNDS, BEYOND_EVALUATIONS):
            state.pop(key, None)


def _number(state: State, key: str) -> int:
    return int(state[key]) if key in state else 0
