"""Generalization adjustment: clients that the global model serves worse than their own count for more."""

from __future__ import annotations

from torch import Tensor


def adjusted_weights(weights: Tensor, gaps: Tensor, *, step: float, centred: bool = True) -> Tensor:
    """FedGA's GA(a, G, d): a_k + d * mean(a) * (G_k - mean G) / max_l |G_l - mean G|, not below 0.

    The result sums to what `weights` sum to. Equal gaps, or a step of 0, leave the weights as they are.

    step     d, the most that a weight changes, in units of the mean weight (of 1/K where weights sum to one)
    centred  measure gaps from their mean (the paper); else as they are (the released code)
    """
    deviations = gaps.double() - gaps.double().mean() if centred else gaps.double()
    largest = deviations.abs().max()
    if largest == 0:
        return weights
    moved = (weights + step * weights.mean() * deviations / largest).clamp(min=0)
    return moved * (weights.sum() / moved.sum())
