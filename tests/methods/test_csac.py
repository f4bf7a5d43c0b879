"""CSAC's two phases against the paper's algorithm written out, and what the frozen model must never do."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import Workspace
from unseen.methods.csac.alignment import AlignmentLoss
from unseen.methods.csac.csac import LOCAL_MODEL, PROJECTIONS, frozen_partner, tap_shapes
from unseen.models import FlatState
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.training import ClientWork, LocalTrainingConfig

STEP = LocalTrainingConfig(epochs=1, batch_size=6, lr=0.1, momentum=0.0, batches_per_epoch=1)


def client_work(experiment, *, round=1, state=None, start=None):
    """The first client's work, outside of any engine."""
    workspace = Workspace(replace(experiment, network=copy.deepcopy(experiment.network)))
    if start is not None:
        workspace.flat.load(start)
    client = experiment.federation[0]
    return ClientWork(
        client=client.name,
        round=round,
        seed=experiment.seed,
        module=workspace.module,
        flat=workspace.flat,
        start=workspace.flat.read(),
        train=Samples(experiment.data, client.train),
        validation=Samples(experiment.data, client.validation),
        plan=experiment.plan,
        prepare=experiment.prepare,
        state={} if state is None else state,
    )


def calibration_work(experiment):
    """A client's work in calibration, with a partner that differs from the model it receives."""
    received = Workspace(experiment).flat.read()
    noise = torch.randn(len(received), generator=torch.Generator().manual_seed(1))
    return client_work(experiment, round=2, state={LOCAL_MODEL: received + 0.05 * noise}, start=received)


@pytest.fixture
def calibration(make_experiment):
    def make(*, plan=STEP, **options):
        experiment = make_experiment("csac", plan=plan, **options)
        return experiment.method, calibration_work(experiment)

    return make


def literal_mmd(x, y):
    count, joint = len(x), torch.cat([x, y])
    squared = torch.stack([torch.stack([((u - v) ** 2).sum() for v in joint]) for u in joint])
    mean = squared.mean().detach()
    kernels = sum(torch.exp(-squared / (2 * 3.0**power * mean)) for power in range(-3, 2))
    total = torch.zeros(())
    for i in range(count):
        for j in range(count):
            if i != j:
                inside = kernels[i, j] + kernels[count + i, count + j]
                total = total + inside / (count * (count - 1))
            total = total - 2 * kernels[i, count + j] / count**2
    return total


def literal_alignment(fused, local):
    """Eq. 6 to 9 on projected maps: one list entry a layer, each n x c x h x w."""
    energies = torch.zeros(2, len(fused), len(local))
    for layer, maps in enumerate(fused):
        for other, partner in enumerate(local):
            for one, two in zip(maps.detach().flatten(2), partner.detach().flatten(2), strict=True):
                energies[0, layer, other] += (one.T @ two).mean() / len(maps)
                energies[1, layer, other] += (one @ two.T).mean() / len(maps)
    weights = energies.exp() / energies.exp().sum(2, keepdim=True)
    weights = (weights[0] + weights[1]) / 2
    total = torch.zeros(())
    for layer, maps in enumerate(fused):
        for other, partner in enumerate(local):
            total = total + weights[layer, other] * literal_mmd(maps.flatten(1), partner.flatten(1))
    return total, weights


def test_acquisition_is_thirty_epochs_of_smoothed_cross_entropy(make_experiment):
    experiment = make_experiment("csac")
    work = client_work(experiment)
    twin = client_work(experiment)
    optimiser = torch.optim.SGD(twin.module.parameters(), lr=0.05, momentum=0.5)
    steps = 0
    plan = LocalTrainingConfig(epochs=30, batch_size=4, lr=0.05, momentum=0.5)
    for batch in twin.batches(plan=plan, purpose="acquisition"):
        probabilities = twin.module(batch.inputs).softmax(1)
        smoothed = 0.9 * F.one_hot(batch.targets, 3) + 0.1 / 3
        optimiser.zero_grad(set_to_none=False)
        (-(smoothed * probabilities.log()).sum(1).mean()).backward()
        optimiser.step()
        steps += 1
    update = experiment.method.client(work)
    torch.testing.assert_close(update.weights, twin.flat.read(), rtol=1e-3, atol=1e-4)
    assert update.steps == steps == 30 * 4 and not update.diagnostics
    assert torch.equal(work.state[LOCAL_MODEL], update.weights)


def test_acquisition_can_have_its_own_number_of_batches(make_experiment):
    settings = {"acquisition_epochs": 2, "acquisition_batches_per_epoch": 3}
    assert (
        make_experiment("csac", settings=settings)
        .method.client(client_work(make_experiment("csac", settings=settings)))
        .steps
        == 6
    )


def test_one_step_of_calibration_equals_the_paper(calibration):
    method, work = calibration()
    network, partner = copy.deepcopy(work.module), frozen_partner(work)
    projections = method._projections(work, tap_shapes(work, partner))
    assert [tuple(layer.weight.shape) for layer in projections.fused] == [(32, 32, 2, 2), (32, 64, 1, 1)]
    batch = next(iter(work.batches()))

    def project(layers, taps):
        first = F.conv2d(taps[0], layers[0].weight, layers[0].bias, stride=2)
        return [first, F.conv2d(taps[1], layers[1].weight, layers[1].bias)]

    output, frozen = network.full(batch.inputs), partner.full(batch.inputs)
    alignment, weights = literal_alignment(
        project(projections.fused, output.taps), project(projections.local, frozen.taps)
    )
    loss = 0.6 * alignment + F.cross_entropy(output.logits, batch.targets)
    trained = [*network.parameters(), *projections.parameters()]
    slopes = torch.autograd.grad(loss, trained)
    expected = [value.detach() - 0.1 * slope for value, slope in zip(trained, slopes, strict=True)]

    work._steps = work._samples_seen = 0
    update = method.client(work)
    found = list(work.module.parameters())
    for value, wanted in zip(found, expected, strict=False):
        torch.testing.assert_close(value.detach(), wanted, rtol=1e-4, atol=1e-6)
    after = FlatState(copy.deepcopy(projections))
    after.load(work.state[PROJECTIONS])
    for value, wanted in zip(after.module.parameters(), expected[len(found) :], strict=True):
        torch.testing.assert_close(value.detach(), wanted, rtol=1e-4, atol=1e-6)
    assert update.steps == 1
    assert update.loss == pytest.approx(float(loss.detach()), rel=1e-4)
    assert update.diagnostics["alignment_loss"] == pytest.approx(float(alignment.detach()), rel=1e-4)
    torch.testing.assert_close(torch.tensor(update.diagnostics["attention"]), weights, rtol=1e-4, atol=2e-5)


def test_alignment_reaches_every_tapped_layer_of_the_fused_model_and_none_of_the_frozen_one(calibration):
    method, work = calibration()
    flat, align = method._alignment(work)
    assert isinstance(align, AlignmentLoss) and not align.partner.training
    batch = next(iter(work.batches()))
    value = align(batch.inputs, work.module.full(batch.inputs))
    value.backward()
    reached = {name: bool(item.grad.abs().sum() > 0) for name, item in work.module.named_parameters()}
    assert reached == {name: name.startswith(("stages.conv1", "stages.conv2")) for name in reached}
    assert {name.partition(".")[0] for name in reached} == {"stages", "head"}
    assert all(item.grad is None and not item.requires_grad for item in align.partner.parameters())
    assert all(item.grad.abs().sum() > 0 for item in flat.module.parameters())
    assert abs(float(value.detach())) > 1e-3


def test_the_frozen_model_never_changes_and_is_sent_only_once(make_experiment, go, tmp_path):
    memory = {}
    for rounds in (1, 3):
        experiment = make_experiment("csac", settings={"acquisition_epochs": 2})
        checkpoint, records = go(experiment, rounds=rounds)
        store = StateStore(RunFolder(tmp_path / "run").client_states, checkpoint.client_states)
        memory[rounds] = [store.read(client.name) for client in experiment.federation]
    for early, late in zip(memory[1], memory[3], strict=True):
        assert set(early) == {LOCAL_MODEL} and set(late) == {LOCAL_MODEL, PROJECTIONS}
        assert torch.equal(early[LOCAL_MODEL], late[LOCAL_MODEL])
    size = len(checkpoint.weights)
    assert all(entry["bytes_up"] == 3 * 4 * size for entry in records.entries if entry["event"] == "round")
    assert experiment.method.sends == ("model weights", "number of samples")


def test_calibration_sends_the_calibrated_model_and_nothing_else(calibration):
    method, work = calibration(plan=LocalTrainingConfig(momentum=0.5, epochs=2, batch_size=4, lr=0.05))
    frozen = work.state[LOCAL_MODEL].clone()
    update = method.client(work)
    assert not update.extras and torch.equal(work.state[LOCAL_MODEL], frozen)
    assert not torch.equal(update.weights, frozen) and not torch.equal(update.weights, work.start)


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_batch_statistics_of_the_frozen_model_stay_too(calibration):
    method, work = calibration(model="resnet18")
    state = work.flat.read()
    work.state[LOCAL_MODEL] = state.clone()
    _, align = method._alignment(work)
    before = copy.deepcopy(align.partner.state_dict())
    assert len(align.projections.fused) == 3
    update = method.client(work)
    for name, value in frozen_partner(work).state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not torch.equal(update.weights, state)


def test_records_tell_what_happened(make_experiment, go):
    _, records = go(make_experiment("csac", settings={"acquisition_epochs": 2}), rounds=2)
    first, second = (entry["diagnostics"] for entry in records.entries if entry["event"] == "round")
    assert first["layers"] == [
        "stages.conv1.0.weight",
        "stages.conv2.0.weight",
        "stages.hidden.1.weight",
        "head.weight",
    ]
    for row in first["layer_weights"]:
        assert len(row) == 3 and sum(row) == pytest.approx(1, abs=1e-4) and len(set(row)) == 3
    assert "alignment_loss" not in first and set(second["alignment_loss"]) == {"a", "b", "c"}
    assert all(abs(value) > 1e-4 for value in second["alignment_loss"].values())
    for matrix in second["attention"].values():
        assert [sum(row) for row in matrix] == pytest.approx([1, 1], abs=1e-4)


def test_a_client_that_joins_late_begins_with_acquisition(make_experiment, go):
    experiment = make_experiment("csac", settings={"acquisition_epochs": 3})
    _, records = go(experiment, rounds=4, fraction=0.4)
    seen = set()
    for entry in (entry for entry in records.entries if entry["event"] == "round"):
        calibrated = set(entry["diagnostics"].get("alignment_loss", {}))
        assert calibrated == seen & set(entry["clients"])
        seen |= set(entry["clients"])
    assert len(seen) > 1
