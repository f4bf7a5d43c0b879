"""A plain PyTorch loop over a client's batches, to compare local training with."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from unseen.data import Samples
from unseen.models.network import StagedNetwork
from unseen.seeding import torch_generator
from unseen.training import batch_positions


def small_network(*, channels=3, outputs=3):
    """A network with batch norm and a head, for images of any size."""
    torch.manual_seed(3)
    stages = {
        "first": nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        "last": nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 6), nn.ReLU()),
    }
    return StagedNetwork(stages, head=nn.Linear(6, outputs))


def train_literally(experiment, *, optimizer, rounds=1, batch_step=None, scheduler=None, per="step"):
    """Train the experiment's network on client 0 alone; return its state.

    optimizer   makes torch's optimizer of a network
    batch_step  called with network, loss function and optimizer in place of a plain backward pass
    scheduler   makes torch's scheduler, stepped after every `per`
    """
    network = copy.deepcopy(experiment.network).train()
    client, plan = experiment.federation[0], experiment.plan
    samples = Samples(experiment.data, client.train)
    schedule, rates = None, []
    for number in range(1, rounds + 1):
        order = torch_generator(experiment.seed, "training: order", client.name, number)
        descent = optimizer(network)
        if scheduler is not None and schedule is None:
            schedule = scheduler(descent)
        elif schedule is not None:
            for group, rate in zip(descent.param_groups, rates, strict=True):
                group["lr"] = rate
            schedule.optimizer = descent
        for _ in range(plan.epochs):
            for positions in batch_positions(len(samples), plan.batch_size, generator=order):
                batch = experiment.prepare(samples.gather(positions))

                def loss(batch=batch):
                    return F.cross_entropy(network(batch.inputs), batch.targets)

                descent.zero_grad()
                if batch_step is None:
                    loss().backward()
                else:
                    batch_step(network, loss, descent)
                descent.step()
                if schedule is not None and per == "step":
                    schedule.step()
            if schedule is not None and per == "epoch":
                schedule.step()
        rates = [group["lr"] for group in descent.param_groups]
    return network.state_dict()


def assert_same_state(weights, layout, expected, **tolerance):
    """Compare a flat state with named tensors, buffers included."""
    for name, value in layout.tensors(weights).items():
        torch.testing.assert_close(value, expected[name], **{"rtol": 1e-4, "atol": 1e-6, **tolerance})
