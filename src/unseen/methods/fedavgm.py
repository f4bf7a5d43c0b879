"""FedAvgM: FedAvg with server momentum: the server continues in the direction of earlier rounds."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights, step_towards
from unseen.errors import UsageError
from unseen.hparams import Choice, LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind

VELOCITY = "velocity"


@dataclass(frozen=True)
class FedAvgMSettings(Settings):
    """Settings of FedAvgM."""

    momentum: float = setting(
        0.9,
        "beta, the fraction of the velocity that is kept; 0 = none; paper: 0, 0.7, 0.9, 0.97, 0.99, 0.997",
        search=Choice((0.0, 0.7, 0.9, 0.97, 0.99, 0.997)),
    )
    server_lr: float = setting(
        1.0,
        "step size along the velocity; 1 with momentum 0 is FedAvg",
        search=LogUniform(0.05, 1.5),
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise UsageError(f"setting 'momentum' of fedavgm must be in [0, 1), not {self.momentum}")
        if not self.server_lr > 0:
            raise UsageError(f"setting 'server_lr' of fedavgm must be above 0, not {self.server_lr}")


@register
class FedAvgM(Method[FedAvgMSettings]):
    """Server momentum: v <- beta v + (w - sum_k p_k w_k), w <- w - server_lr v.

    Momentum concerns parameters only; batch-norm statistics are averaged as in FedAvg.
    """

    name = "fedavgm"
    title = "FedAvgM"
    summary = "FedAvg with momentum on the server: each step includes those of earlier rounds"
    paper = Paper(
        title="Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
        authors="Hsu, Qi, Brown",
        year=2019,
        venue="arXiv 1909.06335",
        url="https://arxiv.org/abs/1909.06335",
    )

    def server(self, work: ServerWork) -> Tensor:
        """Add the round's change to the velocity and move the parameters along it."""
        beta, rate, updates = self.settings.momentum, self.settings.server_lr, work.updates
        mean = updates.mean(client_weights(updates.samples, self.settings.weighting))
        trained = updates.layout.extent(Kind.PARAMETER)
        velocity = work.weights[trained] - mean[trained]
        work.diagnostics["change_length"] = float(velocity.norm())
        moved = step_towards(work.weights, mean, rate=rate, layout=updates.layout)
        if beta and VELOCITY in work.state:
            former = work.state[VELOCITY]
            moved[trained].sub_(former, alpha=rate * beta)
            velocity.add_(former, alpha=beta)
        work.diagnostics["velocity_length"] = float(velocity.norm())
        work.state[VELOCITY] = velocity
        return moved
