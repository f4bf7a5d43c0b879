"""Per-sample gradients, clipped and summed: the arithmetic of DP-SGD.

The loss is computed for one sample at a time (vectorized), so that no sample can affect the gradient of
another, whatever a method's loss does with a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from unseen.data import Batch
from unseen.models import FlatState

Loss = Callable[[Batch], Tensor]
_NUMBERS_AT_ONCE = 2**26
"""Number of gradient values in memory at a time: a quarter of a gigabyte."""


class _LossOf(nn.Module):
    """Module with a loss that uses it, so that the loss can be computed with other parameters."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module = module
        self.loss = loss

    def forward(self, batch: Batch) -> Tensor:
        """Compute the loss of a batch of one."""
        return self.loss(Batch(*(part.unsqueeze(0) for part in batch)))


def sum_clipped_gradients(flat: FlatState, loss: Loss, batch: Batch, *, bound: float) -> Tensor:
    """Write sum_i g_i min(1, bound / |g_i|) to the flat gradient; return the sum of the samples' losses.

    The norm runs over all trained parameters at once. An empty batch has the gradient 0, and so has a sample
    whose own is not finite, since a spoiled sum would reveal it.
    """
    flat.gradient.zero_()
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for part in _parts(batch, len(flat.parameters)):
            gradients, losses = gradients_of_samples(flat.module, loss, part)
            squares = [own.flatten(1).square().sum(1) for own in gradients.values()]
            norms = torch.stack(squares).sum(0).sqrt()
            usable = norms.isfinite()
            factors = torch.where(usable, bound / norms.clamp(min=bound), 0.0)
            for name, own in gradients.items():
                place = cast(Tensor, flat.module.get_parameter(name).grad)
                own[~usable] = 0.0
                place += torch.einsum("n,n...->...", factors, own)
            total += losses.detach().double().sum().cpu()
    return total


def gradients_of_samples(module: nn.Module, loss: Loss, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
    """Compute gradients (samples x shape) of every trained parameter by name, and the samples' losses."""
    whole = _LossOf(module, loss)
    prefix = "module."
    trained = {
        prefix + name: value.detach() for name, value in module.named_parameters() if value.requires_grad
    }

    def one(parameters: dict[str, Tensor], *sample: Tensor) -> Tensor:
        return cast(Tensor, functional_call(whole, parameters, (Batch(*sample),), tie_weights=True))

    every = vmap(grad_and_value(one), in_dims=(None, 0, 0, 0), randomness="different")
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):  # no other kernel can be vectorized
        warnings.filterwarnings("ignore", message="There is a performance drop")
        gradients, losses = every(trained, *batch)
    return {name.removeprefix(prefix): value for name, value in gradients.items()}, losses


def _parts(batch: Batch, size: int) -> Iterator[Batch]:
    """Split a batch into parts whose per-sample gradients fit into memory."""
    at_once = max(1, _NUMBERS_AT_ONCE // max(size, 1))
    for start in range(0, len(batch.targets), at_once):
        yield Batch(*(part[start : start + at_once] for part in batch))
