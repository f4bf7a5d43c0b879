"""FedGMA: a parameter moves less where the clients' updates disagree on the direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind, Layout
from unseen.training import ClientWork, LocalTrainingConfig, Update

SIGNS = "signs of the update"


@dataclass(frozen=True)
class FedGMASettings(Settings):
    """Settings of FedGMA."""

    tau: float = setting(
        0.4,
        "agreement from which a parameter moves in full, 0 (all do: FedAvg) to 1 (only where all agree)",
        search=Uniform(0.2, 0.9),
    )
    server_lr: float = setting(1.0, "step size of the server", search=LogUniform(0.1, 2.0))
    signs: Literal["sent", "computed"] = setting(
        "sent",
        "sent: clients send the signs of their updates, half as many bytes again, whose sum is enough "
        "(secure-sum, encryption); computed: the server reads them off every client's update",
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if not 0 <= self.tau <= 1:
            raise UsageError(f"setting 'tau' of fedgma must be in [0, 1], not {self.tau}")
        if not self.server_lr > 0:
            raise UsageError(f"setting 'server_lr' of fedgma must be above 0, not {self.server_lr}")


@register
class FedGMA(Method[FedGMASettings]):
    """Gradient-masked averaging: w <- w + eta m * sum_k p_k (w_k - w), parameter by parameter.

    The agreement is A = |sum_k sign(w_k - w)| / K; the mask m is 1 where A >= tau, and A elsewhere. It covers
    the parameters only; batch-norm statistics are averaged as in FedAvg.
    """

    name = "fedgma"
    title = "FedGMA"
    family = "server rule"
    summary = "averages client updates and shortens the step where their signs disagree"
    paper = Paper(
        title="Gradient Masked Averaging for Federated Learning",
        authors="Tenison, Sreeramadas, Mugunthan, Oyallon, Rish, Belilovsky",
        year=2023,
        venue="TMLR",
        url="https://arxiv.org/abs/2201.11986",
    )
    no_average = "it moves each parameter by the agreement of signs"
    sends: tuple[str, ...] = ("model weights", "number of samples", SIGNS)
    merges = {SIGNS: "sum"}  # noqa: RUF012 (declared as the class's own in Method)
    beyond_losses = ""
    mixed_targets = True

    def __init__(self, settings: FedGMASettings) -> None:
        super().__init__(settings)
        if settings.signs == "computed":
            self.sends = Method.sends
            self.needs_individual_updates = True

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe the signs: a whole number per parameter, in 16 bits so that sums fit."""
        if self.settings.signs == "computed":
            return {}
        place = Layout.of(module).extent(Kind.PARAMETER)
        return {SIGNS: torch.empty(place.stop - place.start, dtype=torch.int16, device="meta")}

    def client(self, work: ClientWork) -> Update:
        """Train as in FedAvg, and send the signs with the update if the server is not to compute them."""
        update = super().client(work)
        if self.settings.signs == "computed":
            return update
        trained = work.flat.layout.extent(Kind.PARAMETER)
        change = update.weights[trained] - work.start[trained].to(update.weights.device)
        return replace(update, extras={SIGNS: change.sign().to(torch.int16)})

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse numbers that are no signs: with large ones a client would decide every agreement alone."""
        signs = update.extras.get(SIGNS)
        fits = signs is None or not bool((signs.abs() > 1).any())
        return "" if fits else "sent signs other than -1, 0 and 1"

    def server(self, work: ServerWork) -> Tensor:
        """Shorten the step towards the mean by the mask."""
        settings, updates = self.settings, work.updates
        merged = updates.mean(client_weights(updates.samples, settings.weighting))
        trained = updates.layout.extent(Kind.PARAMETER)
        before = work.weights[trained]
        agreement = self._sum_of_signs(work).abs() / len(updates)
        mask = torch.where(agreement >= settings.tau, 1.0, agreement)
        work.diagnostics["mean_agreement"] = float(agreement.mean())
        work.diagnostics["masked_fraction"] = float((mask < 1).float().mean())
        merged[trained] = torch.lerp(before, merged[trained], settings.server_lr * mask)
        return merged

    def _sum_of_signs(self, work: ServerWork) -> Tensor:
        """Add up the signs that the clients sent, or those of their updates."""
        updates = work.updates
        if self.settings.signs == "sent":
            return torch.stack([extras[SIGNS] for extras in updates.extras]).sum(dim=0).float()
        trained = updates.layout.extent(Kind.PARAMETER)
        total = torch.zeros_like(work.weights[trained])
        for row in updates.rows:
            total += (row[trained] - work.weights[trained]).sign()
        return total
