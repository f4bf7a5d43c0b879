"""FedGA: FedAvg whose client weights follow the generalization gap between merged and own model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unseen.aggregation import (
    WEIGHTING,
    ServerWork,
    Weighting,
    adjust_weights,
    client_weights,
    normalize_weights,
)
from unseen.errors import UsageError
from unseen.hparams import Settings, Uniform, setting
from unseen.methods._shared import Measured, choose_samples, explain_no_scalar, measure
from unseen.methods.base import Method, Paper, register
from unseen.training import ClientWork, LocalTrainingConfig, Update

GAP = "generalization gap"
OWN_RISK = "risk of the own model"


@dataclass(frozen=True)
class FedGASettings(Settings):
    """Settings of FedGA."""

    step: float = setting(
        0.2,
        "d: largest change of a weight in a round, in units of the mean weight, at least 0 (weights stay "
        "as they start: FedAvg) and below 1; falls linearly to 0 over the run's rounds",
        search=Uniform(0.05, 0.5),
    )
    start: Weighting = setting("uniform", f"the first weights: {WEIGHTING}")
    gap_on: Measured = setting("validation", "the samples of a client on which both models are compared")
    risk: Literal["loss", "error"] = setting(
        "loss", "what is compared: the mean loss, or the fraction of errors (the released code's default)"
    )
    centred: bool = setting(True, "measure gaps from their mean; false = not centred, like the released code")

    def __post_init__(self) -> None:
        if not 0 <= self.step < 1:
            raise UsageError(f"setting 'step' of fedga must be at least 0 and below 1, not {self.step}")


@register
class FedGA(Method[FedGASettings]):
    """Generalization adjustment on FedAvg: w <- sum_k a_k w_k with a moved by the generalization gaps.

    G_k = R_k(w) - R_k(w_k): the risk, on client k's data, of the merged model that it receives, less that of
    its own model that was merged. A client that has none yet sends no gap and keeps its weight.
    """

    name = "fedga"
    title = "FedGA"
    family = "server rule"
    summary = "FedAvg that gives more weight to clients whose own model beats the merged one on their data"
    paper = Paper(
        title="Federated Domain Generalization with Generalization Adjustment",
        authors="Zhang, Xu, Yao, Zhang, Tian, Wang",
        year=2023,
        venue="CVPR",
        url="https://openaccess.thecvf.com/content/CVPR2023/html/"
        "Zhang_Federated_Domain_Generalization_With_Generalization_Adjustment_CVPR_2023_paper.html",
    )
    weighting_setting = "start"
    no_average = "its result are the weights of the clients, which others would ignore"
    needs_individual_updates = True
    sends = ("model weights", "number of samples", GAP)
    beyond_losses = "it sends the risk of models on its samples"
    mixed_targets = True

    @property
    def reweighting(self) -> str:
        """Weights follow the gaps from the second round on."""
        return "then by gaps" if self.settings.step else ""

    def client(self, work: ClientWork) -> Update:
        """Compare the received model with the client's former one, train, and keep the risk of the result."""
        extras: dict[str, Tensor] = {}
        if OWN_RISK in work.state:
            extras[GAP] = self._risk(work) - work.state[OWN_RISK]
        work.fit(lambda batch: work.task_loss(work.module(batch.inputs), batch.targets))
        work.state[OWN_RISK] = self._risk(work)
        return work.update(extras=extras, diagnostics={key: float(gap) for key, gap in extras.items()})

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse a gap that is not one number."""
        return explain_no_scalar(update.extras.get(GAP), name="a gap")

    def server(self, work: ServerWork) -> Tensor:
        """Adjust the weights of the clients that sent a gap, then merge all clients of the round."""
        clients, state = work.updates.clients, work.state
        first = client_weights(work.updates.samples, self.settings.start)
        keys = [f"weight of {client}" for client in clients]
        weights = torch.stack([state.get(key, own) for key, own in zip(keys, first, strict=True)])
        told = torch.tensor([GAP in extras for extras in work.updates.extras])
        if told.any():
            gaps = torch.stack([extras[GAP] for extras in work.updates.extras if GAP in extras])
            step = self.settings.step * remaining_part(work)
            weights[told] = adjust_weights(weights[told], gaps, step=step, centred=self.settings.centred)
        state.update(zip(keys, weights.unbind(), strict=True))
        shares = normalize_weights(weights).tolist()
        work.diagnostics["client_weights"] = dict(zip(clients, shares, strict=True))
        return work.updates.mean(weights)

    def _risk(self, work: ClientWork) -> Tensor:
        """Compute the risk of the current model: evaluation mode, no gradient, no augmentation."""
        samples = choose_samples(work, self.settings.gap_on, owner="fedga", setting="gap_on")
        if self.settings.risk == "error" and not samples.task_type.has_classes:
            raise UsageError(
                "fedga's risk 'error' counts wrong classes, but this task is regression; use loss"
            )
        metrics = measure(work, self.deployed(work.module), samples)
        value = metrics["loss"] if self.settings.risk == "loss" else 1 - metrics["accuracy"]
        return torch.tensor(value, dtype=torch.float64)


def remaining_part(work: ServerWork) -> float:
    """Compute 1 - t/T for the gaps of the model after t of T rounds, which arrive in round t + 1."""
    return 1 - (work.round - 1) / work.rounds if work.rounds else 1.0
