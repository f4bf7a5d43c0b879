"""FedSAM, FedASAM and FedLESAM: clients take the gradient of each batch at weights of higher loss nearby.

All three are FedAvg with a gradient rule: FedSAM and FedASAM use those of `--sharpness`, with two passes per
batch. FedLESAM takes the direction from what the server sent, and needs one pass.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import FlatState, Kind
from unseen.training import ClientWork, Update
from unseen.training.gradient_rules import GradientRule, adaptive_sharpness_aware, sharpness_aware

SEEN = "server weights last seen"
"""Key in a client's state: the parameters that the client received in its latest round."""


@dataclass(frozen=True)
class FedSAMSettings(Settings):
    """Settings of FedSAM and FedLESAM."""

    rho: float = setting(
        0.1, "length of the perturbation, over all parameters; 0 is FedAvg", search=LogUniform(0.01, 1.0)
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        _require_radius(self.rho)


@dataclass(frozen=True)
class FedASAMSettings(Settings):
    """Settings of FedASAM."""

    rho: float = setting(
        0.7,
        "length of the perturbation, each weight measured in its own size; 0 is FedAvg",
        search=LogUniform(0.05, 2.0),
    )
    eta: float = setting(0.2, "added to the size of every weight, so that weights near 0 are perturbed too")
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        _require_radius(self.rho)
        if not self.eta >= 0:
            raise UsageError(f"setting 'eta' of fedasam must not be negative, not {self.eta}")


S = TypeVar("S", FedSAMSettings, FedASAMSettings)


class SharpnessAware(Method[S]):
    """FedAvg whose clients compute gradients by a rule of the method's own."""

    mixed_targets = True

    @abstractmethod
    def gradient_rule(self, work: ClientWork) -> GradientRule | None:
        """Return where the gradient of each batch is computed in this round; None = at the weights."""

    def client(self, work: ClientWork) -> Update:
        """Train on the task's loss, with gradients at the perturbed weights."""
        work.fit(
            lambda batch: work.task_loss(work.module(batch.inputs), batch.targets),
            gradient_rule=self.gradient_rule(work) if self.settings.rho else None,
        )
        return work.update()

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))


FLAT_MINIMA = Paper(
    title="Improving Generalization in Federated Learning by Seeking Flat Minima",
    authors="Caldarola, Caputo, Ciccone",
    year=2022,
    venue="ECCV",
    url="https://arxiv.org/abs/2203.11834",
)


@register
class FedSAM(SharpnessAware[FedSAMSettings]):
    """Clients minimize max_{|e| <= rho} F_k(w + e), with e = rho g / |g| and g the batch's gradient at w."""

    name = "fedsam"
    title = "FedSAM"
    summary = "clients take each gradient at the worst point nearby, so that they find flat minima"
    paper = FLAT_MINIMA
    beyond_losses = "it needs a second gradient of every batch"

    def gradient_rule(self, work: ClientWork) -> GradientRule:
        """Return the rule of `--sharpness sam`."""
        return GradientRule("SAM", sharpness_aware, self.settings.rho)


@register
class FedASAM(SharpnessAware[FedASAMSettings]):
    """FedSAM with e = rho T^2 g / |T g|, T = |w| + eta: larger weights may move farther."""

    name = "fedasam"
    title = "FedASAM"
    summary = "FedSAM whose neighbourhood is relative to the size of each weight"
    paper = FLAT_MINIMA
    beyond_losses = FedSAM.beyond_losses

    def gradient_rule(self, work: ClientWork) -> GradientRule:
        """Return the rule of `--sharpness asam` with the setting's eta."""
        perturbation = partial(adaptive_sharpness_aware, eta=self.settings.eta)
        return GradientRule("ASAM", perturbation, self.settings.rho)


@register
class FedLESAM(SharpnessAware[FedSAMSettings]):
    """FedSAM with e = rho (w_old - w) / |w_old - w|: w is what the client received, w_old what it got before.

    The server's last moves went down the loss of all clients, so the way back goes up: an estimate of the
    global perturbation that needs no pass over data. A client's first round has none and is FedAvg's.
    """

    name = "fedlesam"
    title = "FedLESAM"
    summary = "FedSAM in one pass: perturbs against the server's move since the client last saw it"
    paper = Paper(
        title="Locally Estimated Global Perturbations are Better than Local Perturbations for Federated "
        "Sharpness-aware Minimization",
        authors="Fan, Hu, Yao, Niu, Zhang, Sugiyama, Wang",
        year=2024,
        venue="ICML",
        url="https://arxiv.org/abs/2405.18890",
    )
    beyond_losses = ""

    def client(self, work: ClientWork) -> Update:
        """Train by the rule, and keep the received weights for the client's next round."""
        update = super().client(work)
        if self.settings.rho:
            received = work.start[work.flat.layout.extent(Kind.PARAMETER)]
            if SEEN in work.state:
                update.diagnostics["server_move"] = float((work.state[SEEN].to(received) - received).norm())
            work.state[SEEN] = received.clone()
        return update

    def gradient_rule(self, work: ClientWork) -> GradientRule | None:
        """Return the fixed perturbation of this round; none where the server has not moved."""
        if SEEN not in work.state:
            return None
        parameters = work.flat.parameters
        uphill = work.state[SEEN].to(parameters) - parameters
        length = torch.linalg.vector_norm(uphill)
        if not length:
            return None
        direction = uphill / length

        def back_towards_old(trained: Sequence[FlatState], rho: float) -> list[Tensor]:
            return [rho * direction]

        return GradientRule("LESAM", back_towards_old, self.settings.rho, needs_gradient=False)


def _require_radius(rho: float) -> None:
    if not rho >= 0:
        raise UsageError(f"setting 'rho' must not be negative, not {rho}")
