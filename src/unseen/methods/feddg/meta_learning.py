"""The episodic step: learn from one batch such that another batch benefits too (meta-learning).

The weights take a trial step on the first batch (meta-train); the second is evaluated with those trial
weights (meta-test). The sum of both losses updates the true weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Episode(NamedTuple):
    """Loss on the first batch, and on the second with trial weights; their sum is minimized."""

    train: Tensor
    test: Tensor


def episodic_losses(
    module: nn.Module,
    train: Tensor,
    test_inputs: Tensor,
    *,
    test_loss: Callable[[Tensor], Tensor],
    inner_lr: float,
    first_order: bool,
) -> Episode:
    """Compute L_train(w) and L_test(w - inner_lr * grad L_train(w)).

    train        L_train(w), computed with `module`
    test_loss    from the outputs for `test_inputs` to L_test
    first_order  treat the trial step's gradient as a constant: d L_test / d w is then the gradient at the
                 trial weights; otherwise second derivatives of L_train are included
    """
    named = {name: value for name, value in module.named_parameters() if value.requires_grad}
    parameters = tuple(named.values())
    gradients = torch.autograd.grad(
        train, parameters, create_graph=not first_order, allow_unused=True, materialize_grads=True
    )
    trial = {
        name: value - inner_lr * gradient
        for (name, value), gradient in zip(named.items(), gradients, strict=True)
    }
    test = test_loss(functional_call(module, trial, (test_inputs,)))
    if first_order:
        train = _KnownGradient.apply(train.detach(), len(parameters), *parameters, *gradients)  # type: ignore[no-untyped-call]
    return Episode(train, test)


class _KnownGradient(torch.autograd.Function):
    """Loss whose gradient is already known, so that no second pass through its graph is needed."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: int, *tensors: Tensor) -> Tensor:
        """Return the loss; `tensors` are the parameters and then their gradients."""
        ctx.gradients = tensors[count:]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        """Return each parameter's gradient."""
        own = tuple(outer[0] * gradient for gradient in ctx.gradients)
        return (None, None, *own, *(None for _ in own))
