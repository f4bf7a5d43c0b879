"""Optimizers on the flat parameter vector, one registry entry each: `--optimizer NAME`.

Any `torch.optim` class works that takes `lr` and `weight_decay`, updates every weight by itself and needs no
closure: the flat parameters are one tensor to it, so a step is a few whole-vector operations and no loop over
tensors. A layer-wise optimizer (LAMB, LARS, Muon) would see one single layer. A plugin adds one in a line:

    OPTIMIZERS.register("nadam")(Optimizer(torch.optim.NAdam, "Adam with Nesterov momentum"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.hparams import LogUniform, Range
from unseen.registry import Registry
from unseen.training.optimizer_state import load_state, pick_state, read_state

if TYPE_CHECKING:
    from unseen.training.local_config import LocalTrainingConfig

_WEIGHT_DECAY = LogUniform(1e-6, 1e-2)


class FlatOptimizer(Protocol):
    """Moves `parameters` along `gradient`, both flat and bound to a module."""

    def clear(self) -> None:
        """Prepare the gradient for a backward pass, which adds to it."""

    def step(self) -> None:
        """Take one step."""


@runtime_checkable
class ScalableOptimizer(FlatOptimizer, Protocol):
    """An optimizer whose learning rate can change between two steps."""

    def scale_lr(self, factor: float) -> None:
        """Use the learning rate that it was built with times `factor` from now on."""


class FlatSGD:
    """Stochastic gradient descent with momentum and weight decay, equal to `torch.optim.SGD`.

    in_gradient  keep the momentum in the gradient itself, so that backward passes add to it: saves two
                 passes over all numbers per step, if nothing else reads the gradient
    nesterov     step along g + momentum v instead of v
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
        nesterov: bool = False,
    ) -> None:
        self.parameters, self.gradient = parameters, gradient
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.nesterov = nesterov and momentum > 0
        self.in_gradient = in_gradient and momentum > 0 and not self.nesterov
        self._velocity: Tensor | None = None
        self._full_lr = lr

    def scale_lr(self, factor: float) -> None:
        """Change the learning rate; the momentum stays as it is."""
        self.lr = self._full_lr * factor

    def read_state(self) -> dict[str, Tensor]:
        """Copy the velocity; without momentum there is none."""
        if self._velocity is None or not self.momentum:
            return {}
        return {"velocity": self._velocity.to("cpu", copy=True)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a velocity."""
        if "velocity" in state:
            self._velocity = self.gradient if self.in_gradient else torch.empty_like(self.gradient)
            self._velocity.copy_(state["velocity"])

    def clear(self) -> None:
        """Set the gradient to zero, or to its momentum."""
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
        if self.nesterov:
            self.gradient.add_(self._velocity, alpha=self.momentum)
            self.parameters.add_(self.gradient, alpha=-self.lr)
        else:
            self.parameters.add_(self._velocity, alpha=-self.lr)


class FlatTorchOptimizer:
    """A `torch.optim` optimizer whose only parameter is the flat vector."""

    def __init__(
        self, kind: type[torch.optim.Optimizer], parameters: Tensor, gradient: Tensor, **options: Any
    ) -> None:
        self._parameter = parameter = parameters.detach().requires_grad_()
        parameter.grad = self.gradient = gradient
        self.optimizer = kind([parameter], **options)
        self._full_lr: float = self.optimizer.param_groups[0]["lr"]

    def scale_lr(self, factor: float) -> None:
        """Change the learning rate; moments stay as they are."""
        self.optimizer.param_groups[0]["lr"] = self._full_lr * factor

    def read_state(self) -> dict[str, Tensor]:
        """Copy all that the optimizer keeps about its parameter."""
        kept = self.optimizer.state[self._parameter]
        other = [name for name, value in kept.items() if not isinstance(value, Tensor)]
        if other:
            raise UsageError(
                f"{type(self.optimizer).__name__} keeps {', '.join(other)} as something other than a tensor, "
                "so its state cannot be kept: leave out --keep-optimizer-state"
            )
        return {name: value.detach().to("cpu", copy=True) for name, value in kept.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with moments and step count; counts of no dimension stay in main memory as in torch."""
        device = self._parameter.device
        for name, value in state.items():
            place = device if value.ndim else torch.device("cpu")
            self.optimizer.state[self._parameter][name] = value.to(place, copy=True)

    def clear(self) -> None:
        """Set the gradient to zero."""
        self.gradient.zero_()

    def step(self) -> None:
        """Take one step."""
        self.optimizer.step()


class JoinedOptimizer:
    """Several optimizers of separate parts of a flat vector, which step together."""

    def __init__(self, parts: Sequence[FlatOptimizer]) -> None:
        self.parts = parts

    def clear(self) -> None:
        """Prepare the gradient of all parts."""
        for part in self.parts:
            part.clear()

    def step(self) -> None:
        """Take one step with all parts."""
        for part in self.parts:
            part.step()

    def scale_lr(self, factor: float) -> None:
        """Change the learning rates of all parts by the same factor."""
        scale_rates(self.parts, factor)

    def read_state(self) -> dict[str, Tensor]:
        """Copy the state of all parts, under the number of each."""
        return {
            f"{number} {name}": value
            for number, part in enumerate(self.parts)
            for name, value in read_state(part).items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the state of all parts."""
        for number, part in enumerate(self.parts):
            load_state(part, pick_state(state, f"{number} "))


def scale_rates(optimizers: Sequence[FlatOptimizer], factor: float) -> None:
    """Set the learning rates of optimizers to those they were built with times `factor`."""
    for optimizer in optimizers:
        if not isinstance(optimizer, ScalableOptimizer):
            raise UsageError(
                f"{type(optimizer).__name__} has no scale_lr(factor), so its learning rate cannot change "
                "within a round; use --schedule-per round"
            )
        optimizer.scale_lr(factor)


@dataclass(frozen=True)
class Optimizer:
    """Registry entry: a `torch.optim` class and how runs use it.

    options         keyword arguments in addition to `lr` and `weight_decay`, which every run sets
    sums_gradients  whether a client's update is a fixed weighted sum of its gradients, as in SGD; methods
                    that rely on it (FedNova, SCAFFOLD) refuse other optimizers
    search          ranges of run options that a hyperparameter search draws from
    """

    kind: type[torch.optim.Optimizer]
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sums_gradients: bool = False
    search: Mapping[str, Range] = field(default_factory=dict)

    def build(
        self, config: LocalTrainingConfig, parameters: Tensor, gradient: Tensor, *, in_gradient: bool
    ) -> FlatOptimizer:
        """Create the optimizer for flat parameters; `in_gradient` as in `FlatSGD`, ignored by the others."""
        return FlatTorchOptimizer(
            self.kind, parameters, gradient, lr=config.lr, weight_decay=config.weight_decay, **self.options
        )

    def has_state(self, config: LocalTrainingConfig) -> bool:
        """Return whether a step depends on more than the weights and the gradient."""
        return True

    def effective_steps(self, steps: int, *, momentum: float) -> float:
        """Count the effective steps of FedNova, see `effective_steps`, where the optimizer sums gradients."""
        return effective_steps(steps, momentum=momentum)


class _SGD(Optimizer):
    """SGD in its fast implementation, with the run's momentum."""

    nesterov: ClassVar[bool] = False

    def has_state(self, config: LocalTrainingConfig) -> bool:
        """Return whether there is momentum."""
        return config.momentum > 0

    def build(
        self, config: LocalTrainingConfig, parameters: Tensor, gradient: Tensor, *, in_gradient: bool
    ) -> FlatOptimizer:
        """Create `FlatSGD`."""
        return FlatSGD(
            parameters,
            gradient,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            in_gradient=in_gradient,
            nesterov=self.nesterov,
        )


class _NesterovSGD(_SGD):
    """SGD with Nesterov's momentum."""

    nesterov = True

    def effective_steps(self, steps: int, *, momentum: float) -> float:
        """Count with a_j = (1 - rho^(steps - j + 2)) / (1 - rho): a gradient acts one step ahead."""
        ahead = effective_steps(steps + 1, momentum=momentum)
        return ahead - 1


OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer", group="unseen.optimizers", builtin=("unseen.training.optimizers",)
)
OPTIMIZERS.register("sgd")(
    _SGD(
        torch.optim.SGD,
        "stochastic gradient descent with --momentum",
        sums_gradients=True,
        search={"lr": LogUniform(0.001, 0.1), "weight_decay": _WEIGHT_DECAY},
    )
)
OPTIMIZERS.register("sgd-nesterov")(
    _NesterovSGD(
        torch.optim.SGD,
        "stochastic gradient descent with Nesterov's --momentum, which looks one step ahead",
        sums_gradients=True,
        search={"lr": LogUniform(0.001, 0.1), "weight_decay": _WEIGHT_DECAY},
    )
)
OPTIMIZERS.register("adam")(
    Optimizer(
        torch.optim.Adam,
        "Adam; weight decay is an L2 penalty in the gradient",
        options={"foreach": False},  # the single-tensor formula, which recorded runs were computed with
        search={"lr": LogUniform(3e-5, 3e-3), "weight_decay": _WEIGHT_DECAY},
    )
)
OPTIMIZERS.register("adamw")(
    Optimizer(
        torch.optim.AdamW,
        "Adam with decoupled weight decay (default 0, as for every optimizer here)",
        options={"foreach": False},
        search={"lr": LogUniform(3e-5, 3e-3), "weight_decay": LogUniform(1e-4, 1e-1)},
    )
)
OPTIMIZERS.register("rmsprop")(
    Optimizer(
        torch.optim.RMSprop,
        "gradients divided by a running root mean square; no momentum",
        options={"foreach": False},
        search={"lr": LogUniform(3e-5, 3e-3), "weight_decay": _WEIGHT_DECAY},
    )
)
OPTIMIZERS.register("adagrad")(
    Optimizer(
        torch.optim.Adagrad,
        "gradients divided by the root of the sum of their squares in the round",
        options={"foreach": False},
        search={"lr": LogUniform(0.001, 0.1), "weight_decay": _WEIGHT_DECAY},
    )
)


def make_optimizer(
    config: LocalTrainingConfig,
    parameters: Tensor,
    gradient: Tensor,
    *,
    in_gradient: bool = False,
    head: Sequence[slice] = (),
) -> FlatOptimizer:
    """Create the optimizer that a configuration names; `in_gradient` as in `FlatSGD`.

    head  places of the head, which has `config.head_lr` times the learning rate: each part of the vector then
          has an optimizer of its own, which changes nothing else, since every weight is updated by itself
    """
    kind = OPTIMIZERS[config.optimizer]
    if config.head_lr == 1 or not head:
        return kind.build(config, parameters, gradient, in_gradient=in_gradient)
    faster = replace(config, lr=config.lr * config.head_lr)
    return JoinedOptimizer(
        [
            kind.build(
                faster if is_head else config, parameters[place], gradient[place], in_gradient=in_gradient
            )
            for place, is_head in split_places(head, len(parameters))
        ]
    )


def split_places(head: Sequence[slice], size: int) -> list[tuple[slice, bool]]:
    """Split a vector into as few parts as possible, each with whether it belongs to the head."""
    inside = torch.zeros(size, dtype=torch.bool)
    for place in head:
        inside[place] = True
    changes = (inside[1:] != inside[:-1]).nonzero().flatten() + 1
    edges = [0, *changes.tolist(), size]
    return [(slice(start, stop), bool(inside[start])) for start, stop in pairwise(edges)]


def effective_steps(steps: int, *, momentum: float) -> float:
    """Compute ||a||_1 of SGD, where w - w_k = lr * sum_j a_j g_j over the gradients g_1 .. g_steps (FedNova).

    With momentum rho, a_j = (1 - rho^(steps - j + 1)) / (1 - rho), since a gradient acts again in every
    later step. Without it every a_j is 1.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def require_sums_of_gradients(config: LocalTrainingConfig, *, method: str) -> None:
    """Refuse, on behalf of `method`, an optimizer that rescales gradients: it has no such a_j.

    A learning rate that changes within a round is refused too: the a_j count every step the same. So is a
    state kept from earlier rounds: the a_j count the gradients of one round.
    """
    if not OPTIMIZERS[config.optimizer].sums_gradients:
        fitting = [name for name in OPTIMIZERS if OPTIMIZERS[name].sums_gradients]
        raise UsageError(
            f"{method} assumes that a client's update is a weighted sum of its gradients, which is true for "
            f"{' and '.join(fitting)} and not for {config.optimizer}; use --optimizer {fitting[0]}"
        )
    if config.changes_within_round:
        raise UsageError(
            f"{method} assumes one learning rate for all steps of a round, which --schedule-per "
            f"{config.schedule_per} changes within it; use --schedule-per round"
        )
    if config.keep_state:
        raise UsageError(
            f"{method} computes a client's mean gradient from its update, which momentum of earlier rounds "
            "would be part of: leave out --keep-optimizer-state"
        )
