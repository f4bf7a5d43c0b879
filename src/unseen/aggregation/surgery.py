"""Gradient surgery as a server's step: from a round's updates to the new global weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

from unseen.aggregation.coefficients import Surgery, VisitOrder, random_order
from unseen.aggregation.gram import gram
from unseen.aggregation.sums import combine_clients
from unseen.aggregation.updates import ServerWork, Updates
from unseen.models import Kind
from unseen.seeding import torch_generator

Reduction = Literal["mean", "sum"]


class Operation(Protocol):
    """An algorithm in coefficient space, such as `align_conflicts`."""

    def __call__(self, gram: Tensor, *, order: VisitOrder) -> Surgery:
        """Operate on vectors of which only the inner products are known."""


@dataclass(frozen=True)
class SurgeryPlan:
    """A server's step that knows of the updates only their Gram matrix: a method's whole server half.

    name  stands for the operation in the records, and in the name of the generator that draws the order
    """

    operation: Operation
    name: str
    reduction: Reduction = "mean"

    def operate(self, gram: Tensor, clients: Sequence[str], *, seed: int, round: int) -> Surgery:
        """Run the operation in this round's random order."""
        generator = torch_generator(seed, f"order of {self.name}", "server", round)
        return self.operation(gram, order=random_order(clients, generator))

    def coefficients(self, outcome: Surgery) -> Tensor:
        """By how much each client's update counts in the global step."""
        total = outcome.coefficients.sum(dim=0)
        return total / len(total) if self.reduction == "mean" else total

    @property
    def steps(self) -> str:
        """The name of the number of changes in the records."""
        return f"{self.name}_steps"


@dataclass(frozen=True)
class OperatedUpdates(Updates):
    """The surgery was made where the server could not look: the one row is its outcome.

    told  what the server was told of it, for the records
    """

    told: Mapping[str, Any] = field(default_factory=dict)


def operate_on_updates(work: ServerWork, plan: SurgeryPlan) -> Tensor:
    """Modify the updates g_k = w_k - w in random order, and step by the mean (or sum) of the results.

    The operation sees the parameters alone; batch-norm statistics are averaged.
    """
    updates = work.updates
    if isinstance(updates, OperatedUpdates):
        work.diagnostics.update(updates.told)
        return updates.rows[0].clone()
    products = gram(updates.rows, work.weights, updates.layout.extent(Kind.PARAMETER))
    outcome = plan.operate(products, updates.clients, seed=work.seed, round=work.round)
    work.diagnostics.update(outcome.diagnostics(steps=plan.steps))
    return combine_clients(updates.rows, work.weights, plan.coefficients(outcome), layout=updates.layout)
