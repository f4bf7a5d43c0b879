"""CWT against the cycle written out: one model, one client after the other, nothing else."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional

from unseen.data import Samples
from unseen.models import FlatState, blocked_maps
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions
from unseen.training.optimizers import FlatSGD

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)


def literal_cycle(experiment, orders):
    """Train one model at every client in turn; each visit starts the optimiser's momentum anew."""
    flat = FlatState(copy.deepcopy(experiment.network))
    for number, names in enumerate(orders, start=1):
        for name in names:
            client = experiment.federation[experiment.federation.position(name)]
            samples, plan = Samples(experiment.data, client.train), experiment.plan
            descent = FlatSGD(flat.parameters, flat.gradient, lr=plan.lr, momentum=plan.momentum)
            order = torch_generator(experiment.seed, "training: order", name, number)
            flat.module.train()
            for _ in range(plan.epochs):
                for positions in batch_positions(len(samples), plan.batch_size, generator=order):
                    batch = experiment.prepare(samples.gather(positions))
                    flat.gradient.zero_()
                    with blocked_maps():
                        outputs = flat.module(batch.inputs)
                    functional.cross_entropy(outputs, batch.targets).backward()
                    descent.step()
    return flat.read()


def clients_of(records):
    return [record["clients"] for record in records.entries if record["event"] == "round"]


def test_equals_the_sequential_loop_bit_for_bit(make_experiment, go):
    ours, records = go(make_experiment("cwt", plan=PLAN), rounds=3)
    assert clients_of(records) == [["a", "b", "c"]] * 3
    assert torch.equal(ours.weights, literal_cycle(make_experiment("cwt", plan=PLAN), clients_of(records)))


def test_shuffled_order_is_drawn_anew_each_round_and_is_followed(make_experiment, go):
    settings = {"order": "shuffled"}
    ours, records = go(make_experiment("cwt", plan=PLAN, settings=settings), rounds=4)
    orders = clients_of(records)
    assert all(sorted(names) == ["a", "b", "c"] for names in orders)
    assert len({tuple(names) for names in orders}) > 1
    assert torch.equal(ours.weights, literal_cycle(make_experiment("cwt", plan=PLAN), orders))
    fixed, _ = go(make_experiment("cwt", plan=PLAN), "fixed", rounds=4)
    assert not torch.equal(ours.weights, fixed.weights)


def test_the_order_matters_and_nothing_is_averaged(make_experiment, go):
    cycle, records = go(make_experiment("cwt", plan=PLAN), rounds=1)
    backwards = literal_cycle(make_experiment("cwt", plan=PLAN), [["c", "b", "a"]])
    averaged, _ = go(make_experiment("fedavg", plan=PLAN), "averaged", rounds=1)
    assert not torch.equal(cycle.weights, backwards)
    assert not torch.allclose(cycle.weights, averaged.weights, atol=1e-3)
    model = cycle.weights.nbytes
    last = next(record for record in records.entries if record["event"] == "round")
    assert last["bytes_up"] == last["bytes_down"] == 3 * model


def test_one_client_is_plain_training(make_experiment, make_tiny_data, go):
    data = make_tiny_data(("a", "held"))
    cycle, _ = go(make_experiment("cwt", data=data), rounds=2)
    alone, _ = go(make_experiment("fedavg", data=data), "alone", rounds=2)
    assert torch.equal(cycle.weights, alone.weights)
