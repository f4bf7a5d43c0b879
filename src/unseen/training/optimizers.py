"""Optimisers on the flat parameter vector: a few whole-vector operations a step, no loop over tensors."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.training.local_config import LocalTrainingConfig


class FlatOptimizer(Protocol):
    """Moves `parameters` along `gradient`, both flat and bound to a module."""

    def clear(self) -> None:
        """Make the gradient ready for a backward pass, which adds to it."""

    def step(self) -> None:
        """Take one step."""


class FlatSGD:
    """Stochastic gradient descent with momentum and weight decay, equal to torch.optim.SGD.

    in_gradient  keep the momentum in the gradient itself, so that backward passes add to it: two passes over
                 all numbers less a step, where nobody else looks at the gradient
    """

    def __init__(
        self,
        parameters: Tensor,
        gradient: Tensor,
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        in_gradient: bool = False,
    ) -> None:
        self.parameters, self.gradient = parameters, gradient
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.in_gradient = in_gradient and momentum > 0
        self._velocity: Tensor | None = None

    def clear(self) -> None:
        """Set the gradient to zero, or to what momentum leaves of it."""
        if self.in_gradient and self._velocity is not None:
            self.gradient.mul_(self.momentum)
        else:
            self.gradient.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Take one step."""
        if self.weight_decay:
            self.gradient.add_(self.parameters, alpha=self.weight_decay)
        if self._velocity is None:
            self._velocity = self.gradient if self.in_gradient or not self.momentum else self.gradient.clone()
        elif self._velocity is not self.gradient:
            torch.add(self.gradient, self._velocity, alpha=self.momentum, out=self._velocity)
        self.parameters.add_(self._velocity, alpha=-self.lr)


class FlatAdam:
    """Adam with decoupled-free (L2) weight decay, equal to torch.optim.Adam."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Tensor, gradient: Tensor, *, lr: float, weight_decay: float = 0.0) -> None:
        self.parameters, self.gradient = parameters, gradient
        self.lr, self.weight_decay = lr, weight_decay
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._steps = 0

    def clear(self) -> None:
        """Set the gradient to zero."""
        self.gradient.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Take one step."""
        if self.weight_decay:
            self.gradient.add_(self.parameters, alpha=self.weight_decay)
        self._steps += 1
        self._mean.lerp_(self.gradient, 1 - self.BETA1)
        self._square.mul_(self.BETA2).addcmul_(self.gradient, self.gradient, value=1 - self.BETA2)
        scale = math.sqrt(1 - self.BETA2**self._steps)
        denominator = self._square.sqrt().div_(scale).add_(self.EPSILON)
        self.parameters.addcdiv_(self._mean, denominator, value=-self.lr / (1 - self.BETA1**self._steps))


def make_optimizer(
    plan: LocalTrainingConfig, parameters: Tensor, gradient: Tensor, *, in_gradient: bool = False
) -> FlatOptimizer:
    """Make the optimiser a plan asks for; `in_gradient` as in `FlatSGD`."""
    if plan.optimiser == "adam":
        return FlatAdam(parameters, gradient, lr=plan.lr, weight_decay=plan.weight_decay)
    return FlatSGD(
        parameters,
        gradient,
        lr=plan.lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
        in_gradient=in_gradient,
    )


def effective_steps(steps: int, *, momentum: float) -> float:
    """||a||_1 of SGD, where w - w_k = lr * sum_j a_j g_j over the gradients g_1 .. g_steps (FedNova).

    With momentum rho, a_j = (1 - rho^(steps - j + 1)) / (1 - rho), since a gradient acts again in every
    later step. Without it every a_j is 1.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def require_sums_of_gradients(plan: LocalTrainingConfig, *, method: str) -> None:
    """Refuse Adam in the name of `method`: it divides by running squares, so there are no such a_j."""
    if plan.optimiser != "sgd":
        raise UsageError(
            f"{method} takes a client's move for a weighted sum of its gradients, which holds for sgd and "
            f"not for {plan.optimiser}; use --optimiser sgd"
        )
