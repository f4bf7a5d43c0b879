"""Differential privacy for samples: DP-SGD at the client, its noise, its batches, its price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.models import FlatState
from unseen.privacy import MethodTraits, PlannedRun, make_protection
from unseen.privacy.dp.accountant import Steps, compute_epsilon
from unseen.privacy.dp.noise import NoiseStream, noise_key
from unseen.privacy.dp.sample_level import SPENT, DPSamples
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)


def protection(**settings) -> DPSamples:
    return make_protection("dp-samples", {"noise_seed": "run", **settings})


def planned(module: nn.Module, *, sizes=(15, 15, 15), rounds: int = 2) -> PlannedRun:
    return PlannedRun(MethodTraits("fedavg"), rounds, sizes, len(sizes), module, PLAN)


def protected(experiment, **settings):
    return replace(experiment, protection=protection(**settings).resolve(planned(experiment.network)))


def round_records(records) -> list[dict]:
    return [record for record in records.entries if record["event"] == "round"]


def test_a_client_trains_by_dp_sgd_to_the_letter(make_experiment):
    """Algorithm 1 of Abadi et al., one sample and one step at a time."""
    clip, noise, seed = 0.5, 0.8, 3
    workspace = Workspace(protected(make_experiment(plan=PLAN, seed=seed), clip=clip, noise=noise))
    start = workspace.flat.read()
    update = workspace.train_client(0, {}, RoundStart(2, start), {})

    experiment = make_experiment(plan=PLAN, seed=seed)
    client = experiment.federation[0]
    flat = FlatState(experiment.network)
    flat.load(start)
    from unseen.data import Samples

    samples = Samples(experiment.data, client.train)
    stream = NoiseStream(noise_key("run", seed=seed, state={}), "dp-samples", client.name, 2)
    count, velocity = len(samples), torch.zeros_like(flat.parameters)
    steps = PLAN.epochs * -(-count // PLAN.batch_size)
    for _ in range(steps):
        drawn = np.flatnonzero(stream.uniform(count) < PLAN.batch_size / count)
        total = torch.zeros_like(flat.parameters)
        for place in drawn:
            flat.gradient.zero_()
            batch = experiment.prepare(samples.gather(torch.tensor([place])))
            nn.functional.cross_entropy(flat.module(batch.inputs), batch.targets).backward()
            total += flat.gradient * min(1.0, clip / float(flat.gradient.norm()))
        total += torch.from_numpy(stream.normal(len(total))).float() * (clip * noise)
        velocity = PLAN.momentum * velocity + total / PLAN.batch_size
        with torch.no_grad():
            flat.parameters -= PLAN.lr * velocity
    torch.testing.assert_close(update.weights, flat.read(), atol=2e-5, rtol=1e-4)
    assert update.steps == steps and update.extras[SPENT].tolist() == [PLAN.batch_size / count, steps]
    assert float((update.weights - start).norm()) > 0.1


def test_noise_has_the_scale_of_the_accountant(make_experiment):
    from unseen.data import Batch
    from unseen.privacy.dp.sample_level import _PrivateTraining

    workspace = Workspace(make_experiment())
    work = type("Work", (), {"flat": workspace.flat, "prepare": workspace.experiment.prepare})()
    settings = protection(noise=0.7, clip=3.0).settings
    training = _PrivateTraining(work, settings, NoiseStream(b"key"), {}, Steps(0.2, 5))
    drawn = list(training.draw(100, 20, generator=torch.Generator()))
    empty = Batch(torch.empty(0, 3, 8, 8), torch.empty(0, dtype=torch.int64), torch.empty(0))
    value = training.differentiate(lambda batch: workspace.module(batch.inputs).sum(), empty)
    noise = workspace.flat.gradient.double().numpy() * 20 / (0.7 * 3.0)
    assert float(value) == 0 and len(drawn) == 5
    assert stats.kstest(noise, "norm").pvalue > 0.001 and noise.std() == pytest.approx(1, rel=0.02)


def test_a_run_states_opacus_epsilon_and_keeps_losses_at_home(make_experiment, go):
    from opacus.accountants import RDPAccountant

    experiment = protected(make_experiment(plan=PLAN), noise=1.1)
    sizes = experiment.federation.train_sizes.tolist()
    _, records = go(experiment, rounds=2)
    for number, record in enumerate(round_records(records), start=1):
        epsilons = []
        for size in sizes:
            theirs = RDPAccountant()
            for _ in range(number * PLAN.epochs * -(-size // PLAN.batch_size)):
                theirs.step(noise_multiplier=1.1, sample_rate=PLAN.batch_size / size)
            epsilons.append(theirs.get_epsilon(delta=1e-5))
        assert record["protection"]["epsilon"] == max(epsilons)
        assert record["protection"]["unit"] == "sample"
        assert record["loss"] is None and record["diagnostics"] == {}
        kinds = {line["kind"]: line["protected"] for line in record["left"]}
        assert kinds["model weights"] == "gradients of samples clipped and noised at the client"
        assert "training loss and counts of steps and samples" not in kinds
        assert record["samples"] == sum(
            round(PLAN.epochs * -(-size // PLAN.batch_size) * PLAN.batch_size) for size in sizes
        )


def test_clients_that_rest_spend_nothing(make_experiment, go):
    checkpoint, records = go(protected(make_experiment(plan=PLAN), noise=1.1), rounds=3, fraction=0.3)
    times = dict.fromkeys("abc", 0)
    for record in round_records(records):
        (client,) = record["clients"]
        times[client] += 1
    state = checkpoint.protection
    for client, number in times.items():
        key = f"steps of {client}"
        assert (int(state[key][0, 1]) if key in state else 0) == number * 8
    most = compute_epsilon([Steps(4 / 15, 8 * max(times.values()))], noise=1.1, delta=1e-5)
    assert round_records(records)[-1]["protection"]["epsilon"] == most


def test_resumed_runs_go_on_with_the_same_noise_and_epsilon(make_experiment, go):
    def experiment():
        return protected(make_experiment(plan=replace(PLAN, epochs=1)))

    whole, records = go(experiment(), "whole")
    go(experiment(), "parts", rounds=1)
    resumed, again = go(experiment(), "parts")
    assert torch.equal(whole.weights, resumed.weights)
    assert [one["protection"] for one in round_records(records)] == [
        one["protection"] for one in round_records(again)
    ]


def test_a_secret_key_stays_with_its_client(make_experiment, go):
    first, records = go(protected(make_experiment(plan=PLAN), noise_seed="secret"), "first", rounds=1)
    second, _ = go(protected(make_experiment(plan=PLAN), noise_seed="secret"), "second", rounds=1)
    assert not torch.equal(first.weights, second.weights)
    assert round_records(records)[0]["protection"]["noise"] == "from a secret key"
    assert not any("key" in name for name in first.protection)


SERVED = [name for name in METHODS if protection().incompatibility(make_method(name).traits) is None]


@pytest.mark.parametrize("method", SERVED)
def test_methods_served_train_with_noise(method, make_experiment, go):
    experiment = protected(make_experiment(method, plan=replace(PLAN, epochs=1)), noise=1.0)
    start = FlatState(experiment.method.build(experiment.network, seed=0)).read()
    checkpoint, _ = go(experiment, rounds=1)
    assert torch.isfinite(checkpoint.weights).all()
    assert 0.3 < float((checkpoint.weights - start).norm()) < 100


def test_methods_that_use_samples_otherwise_are_refused():
    why = {name: protection().incompatibility(make_method(name).traits) for name in METHODS}
    assert {"fedavg", "fedprox", "fedavgm", "scaffold", "ppdg", "cwt", "fednova"} <= set(SERVED)
    assert not set(SERVED) & {"csac", "mdfl", "fedadg", "feddg", "fedavg-share", "deepall", "fedga", "moon"}
    assert "features of a batch as a set" in why["csac"] and "spectra" in why["feddg"]
    assert "option I" in protection().incompatibility(make_method("scaffold", {"option": "I"}).traits)
    assert "does not declare" in protection().incompatibility(MethodTraits("somebody's own"))


def test_batch_norm_and_companions_are_refused(make_experiment):
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match=r"every sample is in the gradient of every other.*groupnorm"):
        protection().check(planned(module))
    experiment = protected(make_experiment())
    own = FlatState(nn.Linear(2, 2))
    method = experiment.method
    method.client = lambda work: work.fit(lambda batch: work.module(batch.inputs).sum(), companions=[own])
    workspace = Workspace(experiment)
    with pytest.raises(UsageError, match="companions"):
        workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()), {})


def test_noise_is_found_for_the_client_where_it_costs_most():
    run = planned(nn.Linear(2, 2), sizes=(20, 200), rounds=3)
    ready = protection(epsilon=4.0).resolve(run)
    spent = [
        compute_epsilon([Steps(4 / size, 3 * 2 * size // 4)], noise=ready.settings.noise, delta=1e-5)
        for size in (20, 200)
    ]
    assert 0.98 * 4 < max(spent) <= 4
    first, *_ = ready.cost_notes(run)
    assert "for a training sample after 3 rounds" in first
