"""The mean of LoRA's products over clients, factored again: `--lora-average products`.

The mean of the factors is biased, since a product of means is not the mean of products:

    sum_k p_k B_k A_k = mean(B) mean(A) + sum_k p_k (B_k - mean(B)) (A_k - mean(A))
"""

from __future__ import annotations

import torch
from torch import Tensor

from unseen.aggregation.averaging import Weighting, client_weights, normalize_weights
from unseen.aggregation.updates import Updates
from unseen.models.lora import factor_pairs


def average_products(merged: Tensor, updates: Updates, weighting: Weighting) -> Tensor:
    """Add to each layer's product what the mean of the factors misses, and factor it to rank r again.

    With B and A of `merged`, the state that a method's server half returned: B A + sum_k p_k (B_k - mean(B))
    (A_k - mean(A)). After FedAvg this is the mean of the clients' products. It has a rank of up to (K + 1) r;
    of it the nearest matrix of rank r is kept.
    """
    if len(updates) < 2:
        return merged
    shares = normalize_weights(client_weights(updates.samples, weighting))
    result = merged.clone()
    for pair in factor_pairs(updates.layout):
        a, b = (entry.view(merged).double() for entry in pair)
        deviations = []
        for entry in pair:
            own = torch.stack([entry.view(row).double() for row in updates.rows])
            deviations.append(own - torch.einsum("k,k...->...", shares, own))
        rows = torch.cat([a, *deviations[0]])
        columns = torch.cat([b, *(shares[:, None, None] * deviations[1])], dim=1)
        for entry, factor in zip(pair, refactor(columns, rows, like=a), strict=True):
            entry.view(result).copy_(factor)
    return result


def refactor(columns: Tensor, rows: Tensor, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Factor columns @ rows into A and B of rank r, as well as possible: its truncated SVD.

    U S V' leaves open in which coordinates the r directions are written. They are those in which A is nearest
    to `like` among all A with orthogonal rows of the same mean length: A = c Q V', B = U S Q' / c with Q the
    orthogonal factor of like V. So A stays at the scale it was drawn with.
    """
    rank = len(like)
    left, upper = torch.linalg.qr(columns)
    right, lower = torch.linalg.qr(rows.T)
    u, s, v = torch.linalg.svd(upper @ lower.T)
    u, s, v = left @ u[:, :rank], s[:rank], right @ v[:rank].T
    length = float(like.norm()) / rank**0.5 or 1.0
    one, _, other = torch.linalg.svd(like @ v)
    turn = one @ other
    return length * turn @ v.T, (u * s) @ turn.T / length
