"""Differential privacy for clients: what is clipped, how loud the noise is, and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.models import Layout
from unseen.privacy import MethodTraits, PlannedRun, ReceivedUpdate, ServerContext, make_protection
from unseen.privacy.dp.client_level import WITHIN, DPClients
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.records import Records
from unseen.training import LocalTrainingConfig, Update

FACTS = MethodTraits("fedavg")


def protection(**settings) -> DPClients:
    return make_protection("dp-clients", {"noise_seed": "run", **settings})


def planned(module: nn.Module, *, clients: int = 5, in_round: int = 5, rounds: int = 4) -> PlannedRun:
    return PlannedRun(
        FACTS,
        rounds,
        [100] * clients,
        in_round,
        module,
        LocalTrainingConfig(epochs=1, batch_size=64, lr=0.01, momentum=0.5),
    )


def server_side(size: int, *, population: int, round: int = 1, state=None, seed: int = 0) -> ServerContext:
    layout = Layout.of(nn.Linear(size, 1, bias=False))
    weights = torch.linspace(-1, 1, size)
    return ServerContext(
        round, seed, (), FACTS, layout, weights, population, state={} if state is None else state
    )


def open_round(
    chosen: DPClients, changes: list[torch.Tensor], *, context: ServerContext, fraction: float = 1.0
):
    """One round of the server's half with clients that send these changes as they are."""
    chosen.sample_clients(
        context.population, fraction=fraction, round=context.round, seed=context.seed, state=context.state
    )
    clip = float(chosen.begin(context)["clipping norm"])
    received = [
        ReceivedUpdate(
            str(number),
            Update(context.weights + change, 10, 1, 10, 0.5, {WITHIN: torch.tensor([change.norm() <= clip])}),
        )
        for number, change in enumerate(changes)
    ]
    rows = (
        torch.stack([update.weights for _, update in received])
        if received
        else torch.empty(0, len(context.weights))
    )
    return chosen.finish(context, received, rows)


def test_noise_has_the_scale_of_the_accountant():
    size, expected = 40_000, 20
    context = server_side(size, population=100)
    opened = open_round(
        protection(noise=0.7, clip=3.0), [torch.zeros(size)] * 4, context=context, fraction=0.2
    )
    noise = (opened.updates.rows[0] - context.weights).double().numpy() * expected / (0.7 * 3.0)
    assert stats.kstest(noise, "norm").pvalue > 0.001
    assert noise.std() == pytest.approx(1, rel=0.02)


def test_noise_is_fresh_in_every_round_and_there_without_clients():
    chosen, size = protection(), 1000
    rows = [
        open_round(chosen, [], context=server_side(size, population=9, round=r)).updates.rows[0]
        for r in (1, 2)
    ]
    assert not torch.equal(*rows)
    correlation = np.corrcoef(*(row - torch.linspace(-1, 1, size) for row in rows))[0, 1]
    assert abs(correlation) < 4 / np.sqrt(size)


def test_the_mean_is_of_clipped_changes_over_the_clients_expected():
    size = 50
    generator = torch.Generator().manual_seed(0)
    changes = [torch.randn(size, generator=generator) * scale for scale in (0.01, 1.0, 30.0)]
    context = server_side(size, population=8)
    opened = open_round(protection(noise=1e-6, clip=2.0), changes, context=context, fraction=0.5)
    bounded = [change * min(1, 2.0 / float(change.norm())) for change in changes]
    expected = context.weights + sum(bounded) / 4
    torch.testing.assert_close(opened.updates.rows[0], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(opened.updates.mean(opened.updates.samples), expected, atol=1e-5, rtol=0)


def test_clients_send_clipped_updates(make_experiment, go):
    from unseen.engine import RoundStart, Workspace

    experiment = make_experiment()
    workspace = Workspace(experiment)
    start = workspace.flat.read()
    plain = workspace.train_client(0, {}, RoundStart(1, start)).weights - start
    clip = torch.tensor([float(plain.norm()) / 3], dtype=torch.float64)
    shielded = Workspace(replace(experiment, protection=protection(adaptive=True)))
    sent = shielded.train_client(0, {}, RoundStart(1, start, sealing={"clipping norm": clip}))
    assert float((sent.weights - start).norm()) == pytest.approx(float(clip), rel=1e-3)
    torch.testing.assert_close(sent.weights - start, plain / 3, atol=1e-5, rtol=1e-3)
    assert not sent.extras[WITHIN] and sent.diagnostics == {}
    roomy = shielded.train_client(0, {}, RoundStart(1, start, sealing={"clipping norm": 10 * clip}))
    assert roomy.extras[WITHIN]
    torch.testing.assert_close(roomy.weights - start, plain, atol=1e-6, rtol=0)


def test_the_norm_follows_the_quantile_of_noised_counts():
    chosen = protection(adaptive=True, noise=0.5, quantile=0.8, clip_share=0.5, clip=0.3)
    size, state = 4, {}
    norms = torch.linspace(1, 3, 200)
    changes = [torch.full((size,), float(norm) / 2) for norm in norms]
    for number in range(1, 120):
        open_round(chosen, changes, context=server_side(size, population=200, round=number, state=state))
    assert chosen.privacy_spent(state)["clip"] == pytest.approx(float(norms.quantile(0.8)), rel=0.05)


def test_counting_takes_its_share_of_the_budget():
    plain, adaptive = protection(noise=0.7), protection(noise=0.7, adaptive=True, clip_share=0.36)
    size = 40_000
    noises = [
        (
            open_round(chosen, [], context=server_side(size, population=10)).updates.rows[0]
            - torch.linspace(-1, 1, size)
        )
        for chosen in (plain, adaptive)
    ]
    assert float(noises[1].std() / noises[0].std()) == pytest.approx(1 / 0.8, rel=1e-3)
    context = server_side(2, population=10)
    steps = []
    for number in range(1, 2001):
        context = server_side(2, population=10, round=number)
        open_round(adaptive, [], context=context)
        steps.append(-np.log(float(context.state["clipping norm"])) / 0.2 * 10)
    assert np.std(steps) == pytest.approx(0.7 / (2 * 0.6), rel=0.1)


def test_participation_is_poisson_with_the_rate_of_the_accountant():
    chosen, state = protection(), {}
    drawn = [chosen.sample_clients(40, fraction=0.2, round=r, seed=1, state=state) for r in range(1, 1001)]
    counts = np.bincount(np.concatenate(drawn).astype(int), minlength=40)
    sizes = np.array([len(one) for one in drawn])
    assert stats.chisquare(counts).pvalue > 0.001
    assert abs(sizes.mean() - 8) < 4 * np.sqrt(40 * 0.2 * 0.8 / 1000)
    assert sizes.var() == pytest.approx(40 * 0.2 * 0.8, rel=0.2)
    assert float(state["rate of participation"]) == 0.2


def with_dp(experiment, **settings):
    chosen = protection(**settings)
    return replace(experiment, protection=chosen.resolve(planned(experiment.network, clients=3, in_round=3)))


def round_records(records: Records) -> list[dict]:
    return [record for record in records.entries if record["event"] == "round"]


def test_a_run_states_opacus_epsilon(make_experiment, go):
    from opacus.accountants import RDPAccountant

    _, records = go(with_dp(make_experiment(), noise=1.3), rounds=3)
    for number, record in enumerate(round_records(records), start=1):
        theirs = RDPAccountant()
        theirs.history = [(1.3, 1.0, number)]
        assert record["protection"]["epsilon"] == theirs.get_epsilon(delta=1e-5)
        assert record["protection"]["unit"] == "client" and record["protection"]["delta"] == 1e-5
        assert "no guarantee towards anyone who knows it" in record["protection"]["noise"]
    (line,) = (line for line in record["left"] if line["kind"] == "model weights")
    assert line["protected"] == "clipped; the server adds noise to the sum"


def test_with_little_noise_it_is_fedavg_with_equal_weights(make_experiment, go):
    plain, _ = go(make_experiment(settings={"weighting": "uniform"}), "plain")
    dp, _ = go(with_dp(make_experiment(), clip=100.0, noise=1e-7), "dp")
    loud, _ = go(with_dp(make_experiment(), clip=0.1, noise=1.0), "loud")
    torch.testing.assert_close(dp.weights, plain.weights, atol=1e-4, rtol=0)
    assert float((loud.weights - plain.weights).norm()) > 1


def test_resumed_runs_go_on_with_the_same_noise_and_epsilon(make_experiment, go):
    def experiment():
        return with_dp(make_experiment(), clip=0.1, noise=0.9, adaptive=True)

    whole, records = go(experiment(), "whole", rounds=3, fraction=0.5)
    go(experiment(), "parts", rounds=1, fraction=0.5)
    resumed, again = go(experiment(), "parts", rounds=3, fraction=0.5)
    assert torch.equal(whole.weights, resumed.weights)
    assert [one["protection"] for one in round_records(records)] == [
        one["protection"] for one in round_records(again)
    ]


def test_a_secret_key_is_kept_in_the_checkpoint_and_differs_between_runs(make_experiment, go, tmp_path):
    first, records = go(with_dp(make_experiment(), noise_seed="secret"), "first", rounds=1)
    second, _ = go(with_dp(make_experiment(), noise_seed="secret"), "second", rounds=1)
    assert not torch.equal(first.weights, second.weights)
    assert round_records(records)[0]["protection"]["noise"] == "from a secret key"
    kept = Checkpoint.load(next((tmp_path / "first").rglob("latest.safetensors"))).protection["noise key"]
    assert torch.equal(kept, first.protection["noise key"])
    assert str(kept.tolist()[:3])[1:-1] not in json.dumps(records.entries)


def test_empty_rounds_are_noised_and_counted(make_experiment, go):
    _, records = go(with_dp(make_experiment(), clip=0.1, noise=0.5), rounds=4, fraction=0.3)
    found = round_records(records)
    empty = [record for record in found if not record["clients"]]
    assert empty and len(found) == 4, "seed 0 has an empty round"
    assert empty[0]["loss"] is None
    assert [record["protection"]["steps"] for record in found] == [1, 2, 3, 4]


def test_batch_norm_is_refused():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(UsageError, match=r"running statistics \('1.running_mean', ...\).*variances negative"):
        protection().check(planned(module))


def test_methods_that_need_more_than_a_mean_are_refused():
    why = {name: protection().incompatibility(make_method(name).traits) for name in METHODS}
    served = {name for name, reason in why.items() if reason is None}
    assert {"fedavg", "fedprox", "fedavgm", "moon"} <= served
    assert not served & {"ppdg", "csac", "scaffold", "mdfl", "deepall", "cwt", "fednova", "feddg"}
    assert "control variate" in why["scaffold"] and "no updates to clip" in why["deepall"]


def test_the_price_is_told_before_the_run():
    run = planned(nn.Linear(10_000, 1, bias=False), clients=10, in_round=10)
    ready = protection(epsilon=2.0).resolve(run)
    epsilon, loudness, seed = ready.cost_notes(run)
    assert "at delta 1e-05 for a client after 4 rounds" in epsilon
    assert 1.98 < float(epsilon.split()[2]) <= 2
    assert f"about {ready.settings.noise * 10:.2g} times as long" in loudness
    assert "run's seed" in seed
