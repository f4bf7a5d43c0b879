"""PCGrad: from every client's update the server takes what works against another client's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from unseen.aggregation import ServerWork, combine_clients, gram, project_conflicts, random_order
from unseen.methods.base import Method, Paper, register
from unseen.methods.settings import Settings, setting
from unseen.models import Kind


@dataclass(frozen=True)
class PCGradSettings(Settings):
    """Settings of PCGrad."""

    reduction: Literal["mean", "sum"] = setting(
        "mean",
        "mean of the projected updates, which keeps the length of a federated step, or their sum as in "
        "the paper",
    )


@register
class PCGrad(Method[PCGradSettings]):
    """Projecting conflicting gradients (algorithm 1), on the clients' updates g_k = w_k - w.

    Conflicts are looked for in the parameters alone; batch-norm statistics are averaged.
    """

    name = "pcgrad"
    summary = "projects conflicting client updates onto each other's normal planes, then averages them"
    paper = Paper(
        title="Gradient Surgery for Multi-Task Learning",
        authors="Yu, Kumar, Gupta, Levine, Hausman, Finn",
        year=2020,
        venue="NeurIPS",
    )
    needs_individual_updates = True

    def server(self, work: ServerWork) -> Tensor:
        """Project every update against the original ones it conflicts with, in random order, and add up."""
        updates = work.updates
        projected = project_conflicts(
            gram(updates.rows, work.weights, updates.layout.extent(Kind.PARAMETER)),
            order=random_order(updates.clients, work.generator("order of projection")),
        )
        work.diagnostics.update(projected.diagnostics(steps="projection_steps"))
        total = projected.coefficients.sum(dim=0)
        return combine_clients(
            updates.rows,
            work.weights,
            total / len(updates) if self.settings.reduction == "mean" else total,
            layout=updates.layout,
        )
