"""AgrSum: a parameter moves only where the updates of all clients have the same sign."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import Reduction, ServerWork, SignAgreement, combine_clients, sign_agreement
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.models import Kind

DOMAIN_GENERALIZATION_VIA_GRADIENT_SURGERY = Paper(
    title="Domain Generalization via Gradient Surgery",
    authors="Mansilla, Echeveste, Milone, Ferrante",
    year=2021,
    venue="ICCV",
    url="https://arxiv.org/abs/2108.01621",
)


@dataclass(frozen=True)
class AgreementSettings(Settings):
    """Settings of AgrSum and AgrRand."""

    reduction: Reduction = setting(
        "mean",
        "mean of the updates, which keeps the length of a federated step, or their sum as in the paper",
    )


@register
class AgrSum(Method[AgreementSettings]):
    """Sum (here by default the mean) of g_k = w_k - w where all signs agree, 0 elsewhere.

    Agreement concerns parameters only; batch-norm statistics are averaged.
    """

    name = "agrsum"
    title = "AgrSum"
    summary = "averages client updates where all their signs agree and leaves the other parameters alone"
    paper = DOMAIN_GENERALIZATION_VIA_GRADIENT_SURGERY
    no_average = "it moves each parameter by the agreement of signs"
    needs_individual_updates = True

    def server(self, work: ServerWork) -> Tensor:
        """Sum the updates, then reset the parameters whose signs differ."""
        merged, _ = agreed_step(work, reduction=self.settings.reduction)
        return merged


def agreed_step(work: ServerWork, *, reduction: Reduction) -> tuple[Tensor, SignAgreement]:
    """Move the global state where all clients agree; also return the agreement over the parameters."""
    updates = work.updates
    trained = updates.layout.extent(Kind.PARAMETER)
    agreement = sign_agreement(updates.rows, work.weights, trained)
    share = 1 / len(updates) if reduction == "mean" else 1.0
    merged = combine_clients(
        updates.rows,
        work.weights,
        torch.full((len(updates),), share, dtype=torch.float64),
        layout=updates.layout,
    )
    torch.where(agreement.agree, merged[trained], work.weights[trained], out=merged[trained])
    work.diagnostics["agreeing_fraction"] = agreement.fraction
    return merged, agreement
