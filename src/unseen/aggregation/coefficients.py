"""Gradient surgery in coefficient space: sequential vector algorithms on K x K numbers.

Every vector that PPDG or PCGrad makes is a linear combination of the K client vectors g_k = w_k - w. So the
algorithms run on K coefficient vectors, with inner products read off the Gram matrix, and touch the
parameters twice: once for the Gram matrix and once for the final weighted sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.aggregation.gram import cosines

LARGEST_RECORDED_MATRIX = 32
"""Up to this many clients the cosine matrix of a round goes into the records."""


@dataclass(frozen=True)
class VisitOrder:
    """In which order clients are modified, and in which order each meets the others.

    clients   positions (clients)
    partners  positions (clients x clients): the row of a client lists whom it meets; itself is passed over
    """

    clients: NDArray[np.int64]
    partners: NDArray[np.int64]


@dataclass(frozen=True)
class Surgery:
    """The outcome of an algorithm in coefficient space.

    coefficients  float64 (clients x clients): row i is the i-th modified vector, sum_k c_ik g_k
    conflicts     pairs of clients with a negative inner product before any change
    steps         how many changes were made
    cosines       float64 (clients x clients): cosines before any change
    """

    coefficients: Tensor
    conflicts: int
    steps: int
    cosines: Tensor

    def diagnostics(self, *, steps: str) -> dict[str, Any]:
        """What a round's record says of it, with the steps under the name that the method gives them.

        The cosine matrix is there only for a moderate number of clients.
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


def random_order(names: Sequence[str], generator: torch.Generator) -> VisitOrder:
    """Draw an order that depends on the clients' names only, not on how the rows happen to be sorted."""
    place = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    clients = place[torch.randperm(len(names), generator=generator).numpy()]
    partners = np.empty((len(names), len(names)), dtype=np.int64)
    for client in place:
        partners[client] = place[torch.randperm(len(names), generator=generator).numpy()]
    return VisitOrder(clients, partners)


def align_conflicts(gram: Tensor, *, strength: float, order: VisitOrder, always: bool = False) -> Surgery:
    """PPDG, algorithm 1: where <g^_i, g^_j> < 0, move g^_i towards g^_j by 2 lambda (g^_j - g^_i).

    Both are the vectors as they stand at that moment, changed ones included.

    always  move without asking for a conflict (the ablation of the paper's table 6)
    """
    products = gram.numpy()
    now = products.copy()
    coefficients = np.eye(len(products))
    steps = 0
    for client in order.clients:
        own, combination = now[client].copy(), coefficients[client]
        for partner in order.partners[client]:
            if partner != client and (always or own[partner] < 0):
                own += 2 * strength * (now[partner] - own)
                combination += 2 * strength * (coefficients[partner] - combination)
                steps += 1
        own[client] = combination @ products @ combination
        now[client] = now[:, client] = own
    return _surgery(gram, coefficients, steps)


def project_conflicts(gram: Tensor, *, order: VisitOrder) -> Surgery:
    """PCGrad, algorithm 1: where <g^_i, g_j> < 0, take from g^_i its part along the original g_j.

    The modified vectors do not meet one another, so all clients take their n-th partner at the same time.
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


def _surgery(gram: Tensor, coefficients: NDArray[np.float64], steps: int) -> Surgery:
    """Put an outcome together with what the vectors were like before."""
    conflicts = int((gram < 0).triu(diagonal=1).sum())
    return Surgery(torch.from_numpy(coefficients), conflicts, steps, cosines(gram))
