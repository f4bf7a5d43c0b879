"""AgrSum: a parameter moves only where the updates of all clients have the same sign."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import (
    Reduction,
    ServerWork,
    SignAgreement,
    Weighting,
    combine_clients,
    normalize_weights,
    sign_agreement,
    unequal_weights,
)
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
    default_weighting = "uniform"
    fixed_weights = ""

    def server(self, work: ServerWork) -> Tensor:
        """Sum the updates, then reset the parameters whose signs differ."""
        return agreed_step(work, self.settings.reduction, self.weighting)[0]


def agreed_step(work: ServerWork, reduction: Reduction, weighting: Weighting) -> tuple[Tensor, SignAgreement]:
    """Move the global state where all clients agree; also return the agreement over the parameters.

    A sum is K times the mean, whatever the weights.
    """
    updates = work.updates
    weights = unequal_weights(updates.samples, weighting)
    trained = updates.layout.extent(Kind.PARAMETER)
    agreement = sign_agreement(updates.rows, work.weights, trained)
    whole = 1 if reduction == "mean" else len(updates)
    coefficients = torch.full((len(updates),), whole / len(updates), dtype=torch.float64)
    if weights is not None:
        coefficients = whole * normalize_weights(weights)
    merged = combine_clients(updates.rows, work.weights, coefficients, layout=updates.layout, weights=weights)
    torch.where(agreement.agree, merged[trained], work.weights[trained], out=merged[trained])
    work.diagnostics["agreeing_fraction"] = agreement.fraction
    return merged, agreement
