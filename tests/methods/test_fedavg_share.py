"""FedAvg-Share against plain rounds over the joined data, and that raw samples travel as declared."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import unseen
from unseen.data import DataSet, Samples
from unseen.engine import Workspace
from unseen.engine.experiment import RoundStart
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods.fedavg_share import LABELS, SAMPLES, shared_by_others
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.0)


def rows_of_numbers() -> DataSet:
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(96, 5)).astype(np.float32)
    return DataSet(
        name="rows",
        task="regression",
        inputs=inputs,
        targets=inputs.sum(axis=1),
        domain_of=np.repeat(np.arange(4), 24),
        domains=("a", "b", "c", "held"),
    )


def literal_rounds(experiment, *, share: float, rounds: int) -> torch.Tensor:
    """FedAvg over lists of single samples: own ones, and from round 2 those that others drew in round 1."""
    space, seed = Workspace(experiment), experiment.seed
    clients = {client.name: client for client in experiment.federation}
    own = {
        name: [
            Samples(experiment.data, client.train).gather(torch.tensor([row]))
            for row in range(len(client.train))
        ]
        for name, client in clients.items()
    }
    drawn = {}
    for name, samples in own.items():
        number = max(1, round(share * len(samples)))
        order = torch.randperm(len(samples), generator=torch_generator(seed, "samples to share", name, 1))
        drawn[name] = [samples[row] for row in sorted(order[:number].tolist())]
    weights, plan = space.flat.read(), experiment.plan
    regression = experiment.data.task == "regression"
    for number in range(1, rounds + 1):
        total = torch.zeros_like(weights, dtype=torch.float64)
        for name, samples in own.items():
            used = list(samples)
            if number > 1:
                used += [sample for giver in sorted(drawn) if giver != name for sample in drawn[giver]]
            space.flat.load(weights)
            space.module.train()
            order = torch_generator(seed, "training: order", name, number)
            for _ in range(plan.epochs):
                parts = list(torch.randperm(len(used), generator=order).split(plan.batch_size))
                if len(parts) > 1 and len(parts[-1]) == 1:
                    parts[-2:] = [torch.cat(parts[-2:])]
                for part in parts:
                    prepared = [experiment.prepare(used[row]) for row in part.tolist()]
                    outputs = space.module(torch.cat([batch.inputs for batch in prepared]))
                    targets = torch.cat([batch.targets for batch in prepared])
                    space.flat.gradient.zero_()
                    loss = (
                        F.mse_loss(outputs.squeeze(1), targets)
                        if regression
                        else F.cross_entropy(outputs, targets)
                    )
                    loss.backward()
                    space.flat.parameters.data.sub_(space.flat.gradient, alpha=plan.lr)
            total += len(samples) * space.flat.read().double()
        weights = (total / sum(len(samples) for samples in own.values())).float()
    return weights


@pytest.mark.parametrize("kind", ["images", "table"])
def test_equals_rounds_over_lists_of_samples(kind, make_experiment, make_tiny_data, go):
    data = make_tiny_data(missing=("b", 1)) if kind == "images" else rows_of_numbers()
    options = {"data": data, "plan": PLAN, "model": "mnist-cnn" if kind == "images" else "mlp"}
    shared, _ = go(make_experiment("fedavg-share", settings={"share": 0.3}, **options), "shared", rounds=3)
    plain, _ = go(make_experiment("fedavg", **options), "plain", rounds=3)
    literal = literal_rounds(make_experiment("fedavg", **options), share=0.3, rounds=3)
    torch.testing.assert_close(shared.weights, literal, rtol=1e-3, atol=1e-5)
    assert (shared.weights - plain.weights).abs().max() > 1e-3


def test_sharing_nothing_is_fedavg_to_the_bit(make_experiment, go):
    nothing, records = go(make_experiment("fedavg-share", settings={"share": 0}), "nothing", rounds=3)
    plain, plain_records = go(make_experiment("fedavg"), "plain", rounds=3)
    assert torch.equal(nothing.weights, plain.weights) and not nothing.server
    for key in ("bytes_up", "bytes_down", "samples"):
        assert [entry.get(key) for entry in records.entries] == [
            entry.get(key) for entry in plain_records.entries
        ]
    assert make_method("fedavg-share", {"share": 0}).sends == METHODS["fedavg"].sends


def test_the_first_round_is_fedavgs(make_experiment, go):
    one, _ = go(make_experiment("fedavg-share"), "one", rounds=1)
    plain, _ = go(make_experiment("fedavg"), "plain", rounds=1)
    assert torch.equal(one.weights, plain.weights)


def test_every_client_gives_once_and_trains_on_all_that_others_gave(make_experiment, go):
    experiment = make_experiment("fedavg-share", settings={"share": 0.25})
    checkpoint, records = go(experiment, rounds=3)
    first, second, third = (entry for entry in records.entries if entry["event"] == "round")
    sizes = {client.name: len(client.train) for client in experiment.federation}
    given = {client: round(size / 4) for client, size in sizes.items()}
    assert second["diagnostics"]["samples from others"] == {
        client: sum(given.values()) - own for client, own in given.items()
    }
    assert first["samples"] == sum(sizes.values())
    assert second["samples"] == first["samples"] + (len(sizes) - 1) * sum(given.values())
    pool = sum(values.nbytes for values in checkpoint.server.values())
    assert pool == sum(given.values()) * (8 * 8 * 3 + 8)
    assert first["bytes_up"] == second["bytes_up"] + pool and second["bytes_up"] == third["bytes_up"]
    assert second["bytes_down"] == first["bytes_down"] + len(sizes) * pool


def test_the_pool_holds_the_raw_training_samples_with_their_labels(make_experiment, go):
    experiment = make_experiment("fedavg-share", settings={"share": 0.5})
    checkpoint, _ = go(experiment, rounds=1)
    for client in experiment.federation:
        inputs = checkpoint.server[f"{SAMPLES} of {client.name}"]
        labels = checkpoint.server[f"{LABELS} of {client.name}"]
        assert inputs.dtype == torch.uint8
        own = Samples(experiment.data, client.train).gather(torch.arange(len(client.train)))
        for image, label in zip(inputs, labels, strict=True):
            found = (own.inputs == image).flatten(1).all(dim=1).nonzero().squeeze(1)
            assert len(found) == 1 and own.targets[found] == label


def test_others_samples_do_not_include_the_own():
    pool = {}
    for number, client in enumerate("cab"):
        pool[f"{SAMPLES} of {client}"] = torch.full((2, 3), float(number))
        pool[f"{LABELS} of {client}"] = torch.full((2,), number)
    assert shared_by_others(pool, "a").targets.tolist() == [2, 2, 0, 0]
    assert shared_by_others(pool, "new").inputs[:, 0].tolist() == [1, 1, 2, 2, 0, 0]
    assert shared_by_others({key: pool[key] for key in pool if key.endswith("a")}, "a") is None


def test_a_late_client_gives_when_it_first_comes(make_experiment):
    experiment = make_experiment("fedavg-share")
    space = Workspace(experiment)
    start = space.flat.read()
    name = experiment.federation[0].name
    late = space.train_client(
        0,
        {},
        RoundStart(
            5,
            start,
            {f"{SAMPLES} of z": torch.zeros(1, 3, 8, 8).byte(), f"{LABELS} of z": torch.zeros(1).long()},
        ),
    )
    assert set(late.extras) == {SAMPLES, LABELS} and late.samples == len(experiment.federation[0].train)
    known = {f"{kind} of {name}": values for kind, values in late.extras.items()}
    assert not space.train_client(0, {}, RoundStart(6, start, known)).extras


def test_the_privacy_record_says_that_samples_and_labels_leave(tmp_path):
    table = rows_of_numbers()
    domains = [table.domains[number] for number in table.domain_of]
    data = unseen.from_arrays(table.inputs, table.targets, domains)
    out = tmp_path / "run"
    unseen.train(data, hold_out="held", method="fedavg-share", rounds=2, batch_size=8, workers=1, out=out)
    privacy = json.loads((out / "result.json").read_text())["privacy"]
    assert {"training samples", "labels"} <= set(privacy)


@pytest.mark.parametrize("share", [-0.01, 1.01])
def test_wrong_shares_are_refused(share):
    with pytest.raises(UsageError, match="share"):
        make_method("fedavg-share", {"share": share})
