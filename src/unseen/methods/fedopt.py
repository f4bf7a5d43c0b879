"""FedAdam, FedYogi and FedAdagrad: an adaptive optimizer on the server; its gradient is a round's change."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind

FIRST, SECOND = "first moment", "second moment"
ADAPTIVE_FEDERATED_OPTIMIZATION = Paper(
    title="Adaptive Federated Optimization",
    authors="Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan",
    year=2021,
    venue="ICLR",
    url="https://arxiv.org/abs/2003.00295",
)


@dataclass(frozen=True)
class FedAdagradSettings(Settings):
    """Settings of FedAdagrad, and those that all three share."""

    server_lr: float = setting(
        0.01,
        "eta: about the largest change of a parameter in a round; the paper tunes it with the clients' rate",
        search=LogUniform(0.001, 1.0),
    )
    beta_1: float = setting(0.0, "fraction of the first moment that is kept; 0 = the round's change alone")
    tau: float = setting(0.001, "adaptivity: changes far below it are all scaled alike, by server_lr/(2 tau)")
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        self._require(self.server_lr > 0, "server_lr", "above 0")
        self._require(0 <= self.beta_1 < 1, "beta_1", "in [0, 1)")
        self._require(self.tau > 0, "tau", "above 0")

    def _require(self, fine: bool, name: str, expected: str) -> None:
        if not fine:
            raise UsageError(f"setting {name!r} must be {expected}, not {getattr(self, name)}")


@dataclass(frozen=True)
class FedAdamSettings(FedAdagradSettings):
    """Settings of FedAdam and FedYogi."""

    beta_1: float = setting(0.9, "fraction of the first moment that is kept; 0 = the round's change alone")
    beta_2: float = setting(0.99, "fraction of the second moment that is kept; 1 = it stays at tau^2")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(0 <= self.beta_2 <= 1, "beta_2", "in [0, 1]")


S = TypeVar("S", bound=FedAdagradSettings)


class FedOpt(Method[S]):
    """The paper's algorithm 2, with D = sum_k p_k (w_k - w), m_0 = 0 and v_0 = tau^2:

    m <- beta_1 m + (1 - beta_1) D, v <- `second_moment`(v, D^2), w <- w + eta m / (sqrt(v) + tau).

    Moments cover the parameters only; batch-norm statistics are averaged as in FedAvg.
    """

    paper = ADAPTIVE_FEDERATED_OPTIMIZATION

    @abstractmethod
    def second_moment(self, former: Tensor, square: Tensor) -> Tensor:
        """Update v with the square of the round's change."""

    def server(self, work: ServerWork) -> Tensor:
        """Update both moments with the round's change and move the parameters."""
        settings, updates = self.settings, work.updates
        merged = updates.mean(client_weights(updates.samples, settings.weighting))
        trained = updates.layout.extent(Kind.PARAMETER)
        change = merged[trained] - work.weights[trained]
        first = work.state.get(FIRST, torch.zeros_like(change))
        second = work.state.get(SECOND, torch.full_like(change, settings.tau**2))
        first = torch.lerp(change, first, settings.beta_1)
        second = self.second_moment(second, change.square())
        step = settings.server_lr * first / (second.sqrt() + settings.tau)
        work.state[FIRST], work.state[SECOND] = first, second
        work.diagnostics |= {"change_length": float(change.norm()), "step_length": float(step.norm())}
        merged[trained] = work.weights[trained] + step
        return merged


@register
class FedAdam(FedOpt[FedAdamSettings]):
    """FedOpt with Adam: v <- beta_2 v + (1 - beta_2) D^2, without bias correction."""

    name = "fedadam"
    title = "FedAdam"
    summary = "Adam on the server: a round's mean change is its gradient"

    def second_moment(self, former: Tensor, square: Tensor) -> Tensor:
        """Average exponentially."""
        return torch.lerp(square, former, self.settings.beta_2)


@register
class FedYogi(FedOpt[FedAdamSettings]):
    """FedOpt with Yogi: v <- v - (1 - beta_2) D^2 sign(v - D^2), which falls more slowly than Adam's."""

    name = "fedyogi"
    title = "FedYogi"
    summary = "Yogi on the server: Adam whose second moment changes by a bounded amount"

    def second_moment(self, former: Tensor, square: Tensor) -> Tensor:
        """Move towards D^2 by a fraction of D^2, whatever the distance."""
        return former - (1 - self.settings.beta_2) * square * (former - square).sign()


@register
class FedAdagrad(FedOpt[FedAdagradSettings]):
    """FedOpt with Adagrad: v <- v + D^2, so that steps become shorter with every round."""

    name = "fedadagrad"
    title = "FedAdagrad"
    summary = "Adagrad on the server: parameters that have moved much move less"

    def second_moment(self, former: Tensor, square: Tensor) -> Tensor:
        """Add up."""
        return former + square
