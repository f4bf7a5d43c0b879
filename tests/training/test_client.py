from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.training import LocalTrainingConfig, batch_positions, reason_to_reject


def _train(workspace, *, seed_state=None, round=1, position=0):
    start = workspace.flat.read() if seed_state is None else seed_state
    return workspace.train_client(position, {}, RoundStart(round, start))


def test_local_training_equals_a_literal_loop(make_experiment):
    """The same batches through a plain module and torch's own optimiser."""
    experiment = make_experiment(
        plan=LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.9, label_smoothing=0.1)
    )
    plain = copy.deepcopy(experiment.network)
    workspace = Workspace(experiment)
    update = _train(workspace)
    client = experiment.federation[0]
    samples = Samples(experiment.data, client.train)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    from unseen.seeding import torch_generator

    order = torch_generator(experiment.seed, "training: order", client.name, 1)
    losses, counts = [], []
    for _ in range(2):
        for positions in batch_positions(len(samples), 4, generator=order):
            batch = samples.gather(positions)
            optimiser.zero_grad()
            loss = F.cross_entropy(
                plain((batch.inputs.float() / 255 - 0.5) / 0.5), batch.targets, label_smoothing=0.1
            )
            loss.backward()
            optimiser.step()
            losses.append(loss.item() * len(positions))
            counts.append(len(positions))
    literal = torch.cat([entry.view(update.weights).flatten() for entry in workspace.flat.layout.entries])
    expected = torch.cat(
        [dict(plain.named_parameters())[e.name].flatten() for e in workspace.flat.layout.entries]
    )
    torch.testing.assert_close(literal, expected, rtol=1e-4, atol=1e-5)
    assert update.loss == pytest.approx(sum(losses) / sum(counts), rel=1e-4)
    assert (update.samples, update.steps, update.seen) == (len(samples), len(losses), sum(counts))


def test_a_client_depends_only_on_its_name_and_round(make_experiment):
    workspace = Workspace(make_experiment())
    start = workspace.flat.read()
    first = _train(workspace, seed_state=start).weights
    _train(workspace, seed_state=start, position=1)
    assert torch.equal(first, _train(workspace, seed_state=start).weights)
    assert not torch.equal(first, _train(workspace, seed_state=start, round=2).weights)


def test_training_leaves_the_global_generator_alone(make_experiment):
    workspace = Workspace(make_experiment())
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    _train(workspace)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": torch.zeros(3)}, "numbers where the model has"),
        ({"loss": float("nan")}, "loss is not finite"),
        ({"extras": {"x": torch.tensor([float("inf")])}}, "with its weights"),
    ],
)
def test_unsound_updates_are_recognised(make_experiment, change, reason):
    from dataclasses import replace

    workspace = Workspace(make_experiment())
    update = _train(workspace)
    size = workspace.flat.layout.size
    assert reason_to_reject(update, size) is None
    found = reason_to_reject(replace(update, **change), size)
    assert found is not None and reason in found


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": 0},
        {"momentum": 1.0},
        {"weight_decay": -1},
        {"optimizer": "lion"},
        {"schedule": "spiral"},
        {"schedule": "cosine", "schedule_settings": {"final": -1}},
        {"batches_per_epoch": 0},
        {"label_smoothing": 1.0},
    ],
)
def test_impossible_plans_are_refused(wrong):
    with pytest.raises(UsageError):
        LocalTrainingConfig(**{"epochs": 1, "batch_size": 4, "lr": 0.05, "momentum": 0.5} | wrong)
