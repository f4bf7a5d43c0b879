"""Local training as a paper writes it down: torch's own SGD on named tensors, no flat states.

The slow side of comparisons: methods' tests build the literal algorithms of their papers on it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from unseen.aggregation import ServerWork, Updates
from unseen.data import Batch, Samples
from unseen.engine import Experiment
from unseen.models import FlatState, Layout
from unseen.seeding import torch_generator
from unseen.training import batch_positions

State = dict[str, Tensor]


@dataclass(frozen=True)
class Visit:
    """What came of one client's local training; gradients are those before any correction, step by step."""

    state: State
    gradients: list[State]
    samples: int

    @property
    def steps(self) -> int:
        return len(self.gradients)


def start_of(experiment: Experiment) -> State:
    return copy.deepcopy(experiment.network).state_dict()


def trained_names(experiment: Experiment) -> list[str]:
    return [name for name, _ in experiment.network.named_parameters()]


def samples_of(experiment: Experiment, client: str) -> Samples:
    federation = experiment.federation
    return Samples(experiment.data, federation[federation.position(client)].train)


def loss_of(experiment: Experiment, module: nn.Module, positions: Tensor, samples: Samples) -> Tensor:
    batch = experiment.prepare(samples.gather(positions))
    outputs = module(batch.inputs)
    if experiment.data.task == "regression":
        return functional.mse_loss(outputs.squeeze(1), batch.targets)
    return functional.cross_entropy(outputs, batch.targets)


def visit(
    experiment: Experiment,
    client: str,
    *,
    round: int,
    start: Mapping[str, Tensor],
    correction: Mapping[str, Tensor] | None = None,
    loss: Callable[[nn.Module, Batch], Tensor] | None = None,
) -> Visit:
    """Train one client from `start`; `correction` is added to every gradient before its step.

    loss  of the module on a prepared batch, in place of the task's
    """
    module, plan, samples = copy.deepcopy(experiment.network), experiment.plan, samples_of(experiment, client)
    module.load_state_dict(start)
    descent = torch.optim.SGD(
        module.parameters(), lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay
    )
    order = torch_generator(experiment.seed, "training: order", client, round)
    gradients = []
    module.train()
    for _ in range(plan.epochs):
        for positions in batch_positions(len(samples), plan.batch_size, generator=order):
            descent.zero_grad()
            if loss is None:
                loss_of(experiment, module, positions, samples).backward()
            else:
                loss(module, experiment.prepare(samples.gather(positions))).backward()
            gradients.append({name: value.grad.clone() for name, value in module.named_parameters()})
            for name, value in module.named_parameters():
                if correction is not None:
                    value.grad += correction[name]
            descent.step()
    return Visit(copy.deepcopy(module.state_dict()), gradients, len(samples))


def mean_state(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> State:
    """Weighted mean of named tensors; whole numbers take the largest."""
    total = sum(weights)
    return {
        name: sum((state[name] * (own / total) for state, own in zip(states, weights, strict=True)))
        if first.is_floating_point()
        else torch.stack([state[name] for state in states]).amax(dim=0)
        for name, first in states[0].items()
    }


def assert_state(weights: Tensor, expected: Mapping[str, Tensor], layout: Layout) -> None:
    """The flat state holds the expected named tensors, every kind of them."""
    found = layout.tensors(weights)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=3e-6), name


def layout_of(experiment: Experiment) -> Layout:
    return Layout.of(experiment.network)


def server_work(flat: FlatState, rows: Tensor, *, round: int = 1, seed: int = 0) -> ServerWork:
    """Make a server's round from the states that clients sent, client k with k + 1 samples."""
    clients = len(rows)
    updates = Updates(
        clients=tuple(f"client {number}" for number in range(clients)),
        rows=rows,
        samples=torch.arange(1, clients + 1, dtype=torch.float64),
        steps=torch.ones(clients, dtype=torch.float64),
        extras=({},) * clients,
        layout=flat.layout,
    )
    return ServerWork(round=round, seed=seed, weights=flat.read(), updates=updates)
