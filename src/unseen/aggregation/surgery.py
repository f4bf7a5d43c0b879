"""Gradient surgery as a server's step: from a round's updates to the new global weights."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from unseen.aggregation.coefficients import Surgery, VisitOrder, random_order
from unseen.aggregation.gram import gram
from unseen.aggregation.sums import combine_clients
from unseen.aggregation.updates import ServerWork
from unseen.models import Kind

Reduction = Literal["mean", "sum"]


class Operation(Protocol):
    """An algorithm in coefficient space, such as `align_conflicts`."""

    def __call__(self, gram: Tensor, *, order: VisitOrder) -> Surgery:
        """Operate on vectors of which only the inner products are known."""


def operate_on_updates(
    work: ServerWork, operation: Operation, *, name: str, reduction: Reduction = "mean"
) -> Tensor:
    """Modify the updates g_k = w_k - w in random order, and step by the mean (or sum) of the results.

    The operation sees the parameters alone; batch-norm statistics are averaged. `name` stands for it in the
    records, and in the name of the generator that draws the order.
    """
    updates = work.updates
    outcome = operation(
        gram(updates.rows, work.weights, updates.layout.extent(Kind.PARAMETER)),
        order=random_order(updates.clients, work.generator(f"order of {name}")),
    )
    work.diagnostics.update(outcome.diagnostics(steps=f"{name}_steps"))
    total = outcome.coefficients.sum(dim=0)
    coefficients = total / len(updates) if reduction == "mean" else total
    return combine_clients(updates.rows, work.weights, coefficients, layout=updates.layout)
