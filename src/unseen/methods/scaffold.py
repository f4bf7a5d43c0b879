"""SCAFFOLD: control variates correct every local step for the drift of a client's own data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.aggregation import (
    WEIGHTING,
    ServerWork,
    Weighting,
    client_weights,
    step_towards,
)
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind, Layout
from unseen.training import ClientWork, Update, batch_positions, require_sums_of_gradients

CONTROL = "control variate"
CHANGE = "change of the control variate"


@dataclass(frozen=True)
class ScaffoldSettings(Settings):
    """Settings of SCAFFOLD."""

    option: Literal["II", "I"] = setting(
        "II",
        "how a client's control variate is updated: from its own update (II), or as the gradient of its data "
        "at the received weights (I), which costs one more pass",
    )
    server_lr: float = setting(
        1.0,
        "eta_g: step size towards the clients' mean; 1 = the mean itself",
        search=LogUniform(0.1, 1.5),
    )
    weighting: Weighting = setting("uniform", WEIGHTING)
    control: bool = setting(True, "whether control variates are used; without them, and server_lr 1: FedAvg")

    def __post_init__(self) -> None:
        if not self.server_lr > 0:
            raise UsageError(f"setting 'server_lr' of scaffold must be above 0, not {self.server_lr}")


@register
class Scaffold(Method[ScaffoldSettings]):
    """Stochastic controlled averaging (algorithm 1): each local step follows g_k(y) - c_k + c.

    c_k (kept by client k) estimates the gradient of its own data, c (kept by the server) that of all data.
    Both cover the parameters only, and start at zero; batch-norm statistics are averaged as in FedAvg.
    """

    name = "scaffold"
    title = "SCAFFOLD"
    summary = "corrects every local step by control variates that cancel the pull of a client's own data"
    paper = Paper(
        title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        authors="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh",
        year=2020,
        venue="ICML",
        url="https://arxiv.org/abs/1910.06378",
    )
    sends: tuple[str, ...] = ("model weights", "number of samples", CHANGE)
    merges = {CHANGE: "mean"}  # noqa: RUF012 (declared as the class's own in Method)
    mixed_targets = True

    def __init__(self, settings: ScaffoldSettings) -> None:
        super().__init__(settings)
        if not settings.control:
            self.sends = Method.sends
        read_twice = settings.control and settings.option == "I"
        self.beyond_losses = (
            "with option I it reads all samples once more, for their gradient" if read_twice else ""
        )

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send c; it is zero, and not sent, before the first round."""
        return {CONTROL: state[CONTROL]} if CONTROL in state else {}

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the change of the control variate: a number per parameter."""
        if not self.settings.control:
            return {}
        place = Layout.of(module).extent(Kind.PARAMETER)
        return {CHANGE: torch.empty(place.stop - place.start, device="meta")}

    def client(self, work: ClientWork) -> Update:
        """Train with corrected gradients, update c_k and send its change (equations 3 and 4)."""
        if not self.settings.control:
            return super().client(work)
        if self.settings.option == "II":
            require_sums_of_gradients(work.plan, method="scaffold with option II")
        zero = torch.zeros_like(work.flat.parameters)
        common = work.received.get(CONTROL, zero).to(zero.device)
        own = work.state.get(CONTROL, zero).to(zero.device)
        renewed = gradient_at_start(work) if self.settings.option == "I" else None
        correction = common - own

        def correct(_: Tensor, gradient: Tensor) -> None:
            gradient.add_(correction)

        work.fit(lambda batch: _loss(work, batch), adjust_gradient=correct)
        update = work.update(diagnostics={"correction_length": float(correction.norm())})
        if renewed is None:
            renewed = own - common + mean_followed_gradient(work, update)
        if bool(torch.isfinite(renewed).all()):
            work.state[CONTROL] = renewed
        return replace(update, extras={CHANGE: renewed - own})

    def server(self, work: ServerWork) -> Tensor:
        """Update x <- x + eta_g mean(y_k - x), c <- c + |S| / N mean(c_k+ - c_k) (equation 5)."""
        updates = work.updates
        weights = client_weights(updates.samples, self.settings.weighting)
        if self.settings.control:
            changes = torch.stack([extras[CHANGE] for extras in updates.extras])
            change = updates.mean_of_vectors(changes, weights)
            part = len(updates) / (work.population or len(updates))
            former = work.state.get(CONTROL, torch.zeros_like(change))
            work.state[CONTROL] = former + part * change
            work.diagnostics["control_length"] = float(work.state[CONTROL].norm())
        return step_towards(
            work.weights, updates.mean(weights), rate=self.settings.server_lr, layout=updates.layout
        )


def mean_followed_gradient(work: ClientWork, update: Update) -> Tensor:
    """Compute (x - y_k) / (K eta_l) of option II (equation 4), the mean corrected gradient.

    With momentum K becomes the number of effective steps, so that constant gradients are found exactly.
    """
    trained = work.flat.layout.extent(Kind.PARAMETER)
    moved = work.start[trained].to(update.weights.device) - update.weights[trained]
    followed = moved / (work.plan.effective_steps(update.steps) * work.plan.lr)
    for place in work.head:
        followed[place] /= work.plan.head_lr
    return followed


def gradient_at_start(work: ClientWork) -> Tensor:
    """Compute g_k(x) of option I (equation 4), the gradient of all local data at the received weights."""
    total = torch.zeros_like(work.flat.gradient)
    order, augment = work.generator("control variate: order"), work.generator("control variate: augmentation")
    work.module.train()
    for positions in batch_positions(len(work.train), work.plan.batch_size, generator=order):
        work.flat.gradient.zero_()
        _loss(work, work.prepare(work.train.gather(positions), augment)).backward()
        total.add_(work.flat.gradient, alpha=len(positions) / len(work.train))
    work.flat.load(work.start)
    return total


def _loss(work: ClientWork, batch: Batch) -> Tensor:
    return work.task_loss(work.module(batch.inputs), batch.targets)
