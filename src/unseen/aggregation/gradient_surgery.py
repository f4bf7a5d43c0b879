"""Gradient surgery (PPDG, PCGrad) and sign agreement on the clients' updates g_k = w_k - w.

Every vector that PPDG or PCGrad computes is a linear combination of the K client vectors. So the algorithms
run on K coefficient vectors with inner products from the Gram matrix, and touch the parameters twice: once
for the Gram matrix and once for the final weighted sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.aggregation.averaging import combine_clients, normalize_weights
from unseen.aggregation.distances import block_slices, block_width, difference_blocks
from unseen.aggregation.updates import ServerWork, Updates
from unseen.models import Kind
from unseen.seeding import torch_generator


def gram(rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None) -> Tensor:
    """Compute <w_i - w, w_j - w> over a part of the state: float64 (clients x clients), symmetric.

    One blocked pass that needs memory for one block only, whatever the number of columns.
    """
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for _, block in difference_blocks(rows, reference, extent, width=width):
        products.addmm_(block, block.t())
    return (products + products.t()) / 2


def cosines(gram: Tensor) -> Tensor:
    """Compute cosines between vectors from their Gram matrix; a zero vector has cosine 0 with all others."""
    lengths = gram.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    return (gram * inverse[:, None] * inverse).clamp_(-1, 1)


class SignAgreement(NamedTuple):
    """Agreement of the signs of w_k - w per coordinate; coordinates in neither mask are in conflict.

    agree    all clients moved it the same way
    unmoved  no client moved it (a frozen parameter, a dead unit)
    """

    agree: Tensor
    unmoved: Tensor

    @property
    def conflict(self) -> Tensor:
        """Mask of the coordinates that some client moved and on which not all agree."""
        return ~(self.agree | self.unmoved)

    @property
    def fraction(self) -> float:
        """Agreeing fraction of the coordinates that any client moved; 1 if none did."""
        moved = len(self.agree) - int(self.unmoved.sum())
        return int(self.agree.sum()) / moved if moved else 1.0


def sign_agreement(
    rows: Tensor, reference: Tensor, extent: slice, *, width: int | None = None
) -> SignAgreement:
    """Compare the signs of all clients' updates over a part of the state, in one blocked pass.

    A client that did not change a coordinate disagrees with one that did. No difference is computed: all
    signs are positive where even the smallest value is above the reference.
    """
    size = extent.stop - extent.start
    agree, unmoved = torch.empty(size, dtype=torch.bool), torch.empty(size, dtype=torch.bool)
    for columns in block_slices(extent, width or block_width(len(rows))):
        smallest, largest = rows[:, columns].amin(dim=0), rows[:, columns].amax(dim=0)
        before = reference[columns]
        place = slice(columns.start - extent.start, columns.stop - extent.start)
        torch.logical_or(smallest > before, largest < before, out=agree[place])
        torch.logical_and(smallest == before, largest == before, out=unmoved[place])
    return SignAgreement(agree, unmoved)


LARGEST_RECORDED_MATRIX = 32
"""Up to this many clients, records contain the round's cosine matrix."""


@dataclass(frozen=True)
class VisitOrder:
    """Order in which clients are modified, and in which each is compared with the others.

    clients   positions (clients)
    partners  positions (clients x clients): the row of a client lists its partners; itself is skipped
    """

    clients: NDArray[np.int64]
    partners: NDArray[np.int64]


@dataclass(frozen=True)
class SurgeryResult:
    """Result of an algorithm in coefficient space.

    coefficients  float64 (clients x clients): row i is the i-th modified vector, sum_k c_ik g_k
    conflicts     pairs of clients with a negative inner product before any change
    steps         number of changes made
    cosines       float64 (clients x clients): cosines before any change
    """

    coefficients: Tensor
    conflicts: int
    steps: int
    cosines: Tensor

    def diagnostics(self, *, steps: str) -> dict[str, Any]:
        """Build the entries of a round's record, with the number of steps under the method's own key.

        The cosine matrix is included only for a moderate number of clients.
        """
        number = len(self.cosines)
        pairs = max(number * (number - 1), 1)
        found: dict[str, Any] = {
            "conflicting_pairs": self.conflicts,
            steps: self.steps,
            "mean_cosine": float((self.cosines.sum() - self.cosines.diagonal().sum()) / pairs),
        }
        if number <= LARGEST_RECORDED_MATRIX:
            found["cosines"] = [[round(value, 4) for value in row] for row in self.cosines.tolist()]
        return found


def draw_visit_order(names: Sequence[str], generator: torch.Generator) -> VisitOrder:
    """Draw an order that depends on the clients' names only, not on the order of the rows."""
    place = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    clients = place[torch.randperm(len(names), generator=generator).numpy()]
    partners = np.empty((len(names), len(names)), dtype=np.int64)
    for client in place:
        partners[client] = place[torch.randperm(len(names), generator=generator).numpy()]
    return VisitOrder(clients, partners)


def align_conflicts(
    gram: Tensor, *, strength: float, order: VisitOrder, always: bool = False, from_original: bool = False
) -> SurgeryResult:
    """Run PPDG's algorithm 1: where <g^_i, g^_j> < 0, move g^_i towards g^_j by 2 lambda (g^_j - g^_i).

    Both are the current vectors, already changed ones included.

    always         move without checking for a conflict (the ablation of the paper's table 6)
    from_original  start each move at the original g_i, as line 6 is printed: a client's second move replaces
                   most of its first
    """
    products = gram.numpy()
    now = products.copy()
    coefficients = np.eye(len(products))
    steps = 0
    for client in order.clients:
        own, combination = now[client].copy(), coefficients[client]
        original, itself = own.copy(), combination.copy()
        for partner in order.partners[client]:
            if partner != client and (always or own[partner] < 0):
                moved = 2 * strength * (now[partner] - own)
                recombined = 2 * strength * (coefficients[partner] - combination)
                if from_original:
                    own[:], combination[:] = original, itself
                own += moved
                combination += recombined
                steps += 1
        own[client] = combination @ products @ combination
        now[client] = now[:, client] = own
    return _surgery(gram, coefficients, steps)


def project_conflicts(gram: Tensor, *, order: VisitOrder) -> SurgeryResult:
    """Run PCGrad's algorithm 1: where <g^_i, g_j> < 0, remove from g^_i its component along the original g_j.

    Modified vectors are never compared with one another, so all clients process their n-th partner at the
    same time.
    """
    products = gram.numpy()
    everyone = np.arange(len(products))
    squares = products.diagonal()
    with_originals = products.copy()
    coefficients = np.eye(len(products))
    steps = 0
    for partners in order.partners.T:
        inner = with_originals[everyone, partners]
        conflict = (inner < 0) & (partners != everyone) & (squares[partners] > 0)
        share = np.divide(inner, squares[partners], out=np.zeros(len(products)), where=conflict)
        coefficients[everyone, partners] -= share
        with_originals -= share[:, None] * products[partners]
        steps += int(conflict.sum())
    return _surgery(gram, coefficients, steps)


def _surgery(gram: Tensor, coefficients: NDArray[np.float64], steps: int) -> SurgeryResult:
    """Combine coefficients with the statistics of the vectors before surgery."""
    conflicts = int((gram < 0).triu(diagonal=1).sum())
    return SurgeryResult(torch.from_numpy(coefficients), conflicts, steps, cosines(gram))


Reduction = Literal["mean", "sum"]


class Operation(Protocol):
    """An algorithm in coefficient space, such as `align_conflicts`."""

    def __call__(self, gram: Tensor, *, order: VisitOrder) -> SurgeryResult:
        """Modify vectors of which only the inner products are known."""


@dataclass(frozen=True)
class GradientSurgery:
    """A method's server half that depends on the updates only through their Gram matrix.

    name  of the operation in the records and in the purpose of the generator that draws the order
    """

    operation: Operation
    name: str
    reduction: Reduction = "mean"

    def run(self, gram: Tensor, clients: Sequence[str], *, seed: int, round: int) -> SurgeryResult:
        """Run the operation in this round's random order."""
        generator = torch_generator(seed, f"order of {self.name}", "server", round)
        return self.operation(gram, order=draw_visit_order(clients, generator))

    def coefficients(self, outcome: SurgeryResult, weights: Tensor | None = None) -> Tensor:
        """Compute the coefficient of each client's update in the global step sum_i p_i g^_i.

        A sum is K times the mean, whatever the weights.

        weights  of the modified vectors, scaled here to sum to one; None = equal
        """
        number = len(outcome.coefficients)
        if weights is not None:
            mean = normalize_weights(weights) @ outcome.coefficients
            return mean if self.reduction == "mean" else number * mean
        total = outcome.coefficients.sum(dim=0)
        return total / number if self.reduction == "mean" else total

    @property
    def steps(self) -> str:
        """Key of the number of changes in the records."""
        return f"{self.name}_steps"


@dataclass(frozen=True)
class CombinedUpdates(Updates):
    """Updates combined by surgery under encryption: the only row is the result.

    summary  what the server learned about it, for the records
    """

    summary: Mapping[str, Any] = field(default_factory=dict)


def apply_surgery(work: ServerWork, surgery: GradientSurgery, *, weights: Tensor | None = None) -> Tensor:
    """Modify the updates g_k = w_k - w in random order, and step by the mean (or sum) of the results.

    The operation sees only the parameters; batch-norm statistics are averaged.

    weights  of the clients in both means; None = equal
    """
    updates = work.updates
    if isinstance(updates, CombinedUpdates):
        work.diagnostics.update(updates.summary)
        return updates.rows[0].clone()
    products = gram(updates.rows, work.weights, updates.layout.extent(Kind.PARAMETER))
    outcome = surgery.run(products, updates.clients, seed=work.seed, round=work.round)
    work.diagnostics.update(outcome.diagnostics(steps=surgery.steps))
    coefficients = surgery.coefficients(outcome, weights)
    return combine_clients(updates.rows, work.weights, coefficients, layout=updates.layout, weights=weights)
