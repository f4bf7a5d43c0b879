"""AgrRand: AgrSum with noise on the parameters whose update signs differ between clients."""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.aggregation import ServerWork
from unseen.methods.agrsum import (
    DOMAIN_GENERALIZATION_VIA_GRADIENT_SURGERY,
    AgreementSettings,
    agreed_step,
)
from unseen.methods.base import Method, register
from unseen.models import Kind


@register
class AgrRand(Method[AgreementSettings]):
    """As AgrSum where all signs agree; elsewhere Normal(0, mean |agreed entries|).

    A parameter that no client moved (frozen, or dead) gets no noise.
    """

    name = "agrrand"
    title = "AgrRand"
    summary = "averages client updates where all their signs agree and moves the other parameters at random"
    paper = DOMAIN_GENERALIZATION_VIA_GRADIENT_SURGERY
    no_average = "it moves each parameter by the agreement of signs"
    needs_individual_updates = True
    default_weighting = "uniform"
    fixed_weights = ""

    def server(self, work: ServerWork) -> Tensor:
        """Apply AgrSum's step and add noise of the agreed entries' size where clients disagree."""
        merged, agreement = agreed_step(work, self.settings.reduction, self.weighting)
        trained = work.updates.layout.extent(Kind.PARAMETER)
        agreed = int(agreement.agree.sum())
        moved = (merged[trained] - work.weights[trained]).abs_().sum(dtype=torch.float64)
        scale = float(moved) / agreed if agreed else 0.0
        conflict = agreement.conflict.nonzero().squeeze(1)
        noise = torch.randn(len(conflict), generator=work.generator("noise on disagreement"))
        merged[trained].index_add_(0, conflict, noise, alpha=scale)
        work.diagnostics["noise_scale"] = scale
        return merged
