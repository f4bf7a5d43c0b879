"""IRMv1, V-REx and GroupDRO on the risks of a client's domains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.hparams import LogUniform, setting
from unseen.methods.base import Paper, register
from unseen.methods.domain_objectives.domain_objective import (
    DomainBatch,
    DomainObjective,
    DomainSettings,
    annealed,
    require_not_negative,
)
from unseen.training import ClientWork, Update

WARMUP = (
    "fraction of the run's rounds in which the weight is 1, so that a model is learned first (DomainBed: 500 "
    "of 5000 steps)"
)


@dataclass(frozen=True)
class IRMSettings(DomainSettings):
    """Settings of IRM."""

    penalty: float = setting(
        1.0,
        "lambda: weight of the penalty; 0 is training on the task's loss; DomainBed has 100, for Adam, whose "
        "steps do not grow with it",
        search=LogUniform(0.1, 100.0),
    )
    warmup: float = setting(0.1, WARMUP)

    def __post_init__(self) -> None:
        require_not_negative("irm", penalty=self.penalty, warmup=self.warmup)


@register
class IRM(DomainObjective[IRMSettings]):
    """Clients minimize R + lambda mean_e |grad_s R_e(s w)|^2 at s = 1 over their domains e (IRMv1).

    The squared gradient is estimated without bias by the product of the gradients of two halves of a domain's
    part of the batch.
    """

    name = "irm"
    title = "IRM"
    summary = "clients with several domains: one head should be optimal in each of them (IRMv1)"
    paper = Paper(
        title="Invariant Risk Minimization",
        authors="Arjovsky, Bottou, Gulrajani, Lopez-Paz",
        year=2019,
        venue="arXiv 1907.02893",
        url="https://arxiv.org/abs/1907.02893",
    )

    def strength(self, work: ClientWork) -> float:
        """Return 1 during the warm-up, then lambda."""
        return annealed(work, penalty=self.settings.penalty, warmup=self.settings.warmup)

    def penalty(self, batch: DomainBatch) -> Tensor:
        """Average the penalties of the domains."""
        parts = zip(batch.split(batch.outputs), batch.split(batch.targets), strict=True)
        return torch.stack([_irm_penalty(batch, *part) for part in parts]).mean()


def _irm_penalty(batch: DomainBatch, outputs: Tensor, targets: Tensor) -> Tensor:
    """Multiply the gradients of two halves of a domain's samples by the scale of the outputs."""
    scale = torch.ones((), device=outputs.device, requires_grad=True)
    slopes: list[Tensor] = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        risk = batch.loss(scale * outputs[half], targets[half])
        slopes += torch.autograd.grad(risk, scale, create_graph=True)
    return slopes[0] * slopes[1]


@dataclass(frozen=True)
class VRExSettings(DomainSettings):
    """Settings of V-REx."""

    penalty: float = setting(
        10.0,
        "beta: weight of the variance; 0 is training on the task's loss; DomainBed draws it from 0.1 to 1e5",
        search=LogUniform(0.1, 1e5),
    )
    warmup: float = setting(0.1, WARMUP)

    def __post_init__(self) -> None:
        require_not_negative("vrex-domains", penalty=self.penalty, warmup=self.warmup)


@register
class VRExDomains(DomainObjective[VRExSettings]):
    """Clients minimize mean_e R_e + beta Var_e R_e over the risks of their own domains e."""

    name = "vrex-domains"
    title = "VREx-Domains"
    summary = "clients with several domains: the risks of a client's domains should be equal"
    paper = Paper(
        title="Out-of-Distribution Generalization via Risk Extrapolation (REx)",
        authors="Krueger, Caballero, Jacobsen, Zhang, Binas, Zhang, Le Priol, Courville",
        year=2021,
        venue="ICML",
        url="https://arxiv.org/abs/2003.00688",
    )

    def strength(self, work: ClientWork) -> float:
        """Return 1 during the warm-up, then beta."""
        return annealed(work, penalty=self.settings.penalty, warmup=self.settings.warmup)

    def penalty(self, batch: DomainBatch) -> Tensor:
        """Compute the variance of the domains' risks."""
        return batch.risks().var(correction=0)


Q = "weights of the domains"
"""Key in a client's state: q of GroupDRO, in the order of the domains that the client holds."""


@dataclass(frozen=True)
class GroupDROSettings(DomainSettings):
    """Settings of GroupDRO."""

    step: float = setting(
        0.01,
        "eta: how fast the weights of the domains follow their risks; 0 is training on the task's loss; "
        "DomainBed draws it from 0.001 to 0.1",
        search=LogUniform(0.001, 0.1),
    )

    def __post_init__(self) -> None:
        require_not_negative("groupdro-domains", step=self.step)


@register
class GroupDRODomains(DomainObjective[GroupDROSettings]):
    """Clients minimize sum_e q_e R_e; before each step q_e <- q_e exp(eta R_e), scaled to sum to 1.

    The client keeps q over its rounds. Written as the task's loss plus sum_e (q_e - 1/E) R_e, which is the
    same in batches with equally many samples of each of the E domains.
    """

    name = "groupdro-domains"
    title = "GroupDRO-Domains"
    summary = "clients with several domains: the domains of a client with a higher risk count more"
    paper = Paper(
        title="Distributionally Robust Neural Networks for Group Shifts: On the Importance of Regularization "
        "for Worst-Case Generalization",
        authors="Sagawa, Koh, Hashimoto, Liang",
        year=2020,
        venue="ICLR",
        url="https://arxiv.org/abs/1911.08731",
    )

    def client(self, work: ClientWork) -> Update:
        """Train, and record the largest weight of a domain."""
        update = super().client(work)
        if Q in work.state:
            update.diagnostics["largest_domain_weight"] = float(work.state[Q].max())
        return update

    def strength(self, work: ClientWork) -> float:
        """Return 1, or 0 where the weights never change."""
        return 1.0 if self.settings.step else 0.0

    def penalty(self, batch: DomainBatch) -> Tensor:
        """Update q by the risks, and weight them by what it has more than an equal share."""
        state, count = batch.work.state, len(batch.held)
        q = state.get(Q, torch.full((count,), 1 / count)).to(batch.outputs.device)
        places = [batch.held.index(number) for number in batch.present]
        risks = torch.zeros_like(q)
        risks[places] = batch.risks()
        moved = q * (self.settings.step * risks.detach()).exp()
        q = moved / moved.sum()
        if bool(torch.isfinite(q).all()):
            state[Q] = q.cpu()
        return (q - 1 / count).dot(risks)
