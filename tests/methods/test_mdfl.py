"""MDFL: the table of class means travels, the term acts, and without it MDFL is FedAvg."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from unseen.data import Samples
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import METHODS, make_method
from unseen.methods.mdfl.class_statistics import (
    COUNTS,
    MEANS,
    SUMS,
    at_most_of_each,
    merge_statistics,
    renew_table,
    transferability,
)
from unseen.models import FlatState
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

DIRICHLET = PartitionConfig(kind="dirichlet", clients_per_domain=2, alpha=0.5)
PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.02, momentum=0.0)


@pytest.fixture
def uneven_data(make_tiny_data):
    """Every (domain, class) pair of another size, so that the calibration by counts matters."""
    data = make_tiny_data(per_class=16)
    pair = data.domain_of * data.outputs + data.targets
    kept = np.concatenate([np.flatnonzero(pair == number)[: 5 + number] for number in np.unique(pair)])
    arrays = {name: getattr(data, name)[kept] for name in ("inputs", "targets", "domain_of")}
    return replace(data, fingerprint="", **arrays)


def rounds_of(records):
    return [record for record in records.entries if record["event"] == "round"]


def literal_class_means(network, experiment):
    """The mean feature and the size of every (domain, class) pair, from all its training samples at once."""
    found = {}
    rows = torch.cat([torch.from_numpy(client.train) for client in experiment.federation])
    samples = Samples(experiment.data, rows.numpy())
    batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
    network.eval()
    with torch.no_grad():
        features = network.features(batch.inputs)
    for pair in set(zip(batch.domains.tolist(), batch.targets.tolist(), strict=True)):
        chosen = features[(batch.domains == pair[0]) & (batch.targets == pair[1])]
        found[pair] = (chosen.mean(0), len(chosen))
    return found


def literal_term(z, pair, means):
    """Equation 8 for one sample."""

    def logit(other):
        factor = math.sqrt(means[other][1] / means[pair][1])
        return -factor * (z - means[other][0]).square().sum().sqrt()

    denominator = sum(torch.exp(logit(other)) for other in means if other != pair)
    positives = [other for other in means if other[1] == pair[1] and other[0] != pair[0]]
    return sum(-torch.log(torch.exp(logit(other)) / denominator) for other in positives) / len(positives)


def literal_mdfl(experiment, rounds):
    """The paper's algorithm: for every round every client descends on L_C + L_B, then the mean by samples."""
    network, means = copy.deepcopy(experiment.network), None
    for number in range(1, rounds + 1):
        new_means = literal_class_means(copy.deepcopy(network), experiment)
        locals_, sizes = [], []
        for client in experiment.federation:
            local = copy.deepcopy(network).train()
            descent = torch.optim.SGD(local.parameters(), lr=experiment.plan.lr)
            samples = Samples(experiment.data, client.train)
            order = torch_generator(experiment.seed, "training: order", client.name, number)
            for positions in batch_positions(len(samples), experiment.plan.batch_size, generator=order):
                batch = experiment.prepare(samples.gather(positions))
                features = local.features(batch.inputs)
                loss = functional.cross_entropy(local.head(features), batch.targets)
                if means:
                    pairs = zip(batch.domains.tolist(), batch.targets.tolist(), strict=True)
                    terms = [literal_term(z, pair, means) for z, pair in zip(features, pairs, strict=True)]
                    loss = loss + sum(terms) / len(terms)
                descent.zero_grad()
                loss.backward()
                descent.step()
            locals_.append(local.state_dict())
            sizes.append(len(samples))
        merged = {
            key: sum(n / sum(sizes) * state[key] for n, state in zip(sizes, locals_, strict=True))
            for key in locals_[0]
        }
        network.load_state_dict(merged)
        means = new_means
    return FlatState(network).read()


@pytest.mark.parametrize("model", ["mnist-cnn", "mini-vit"])
def test_equals_the_algorithm_written_out(model, uneven_data, make_experiment, go):
    options = {"model": model, "data": uneven_data, "plan": PLAN, "partition": DIRICHLET}
    options["settings"] = {"strength": 1.0, "start": 0.0}
    expected = literal_mdfl(make_experiment("mdfl", **options), rounds=3)
    ours, _ = go(make_experiment("mdfl", **options), rounds=3)
    plain, _ = go(make_experiment("fedavg", **{**options, "settings": {}}), "plain", rounds=3)
    torch.testing.assert_close(ours.weights, expected, rtol=1e-3, atol=2e-5)
    assert (ours.weights - plain.weights).abs().max() > 100 * (ours.weights - expected).abs().max()


@pytest.mark.parametrize("model", ["mnist-cnn", "cnn-2"])
def test_strength_zero_is_fedavg_to_the_last_bit(model, make_experiment, go):
    """cnn-2 has dropout: taking class means must not draw from it."""
    ours, records = go(make_experiment("mdfl", model=model, settings={"strength": 0}), rounds=3)
    plain, _ = go(make_experiment("fedavg", model=model), "plain", rounds=3)
    assert torch.equal(ours.weights, plain.weights)
    assert "transferability" in rounds_of(records)[-1]["diagnostics"]


def test_the_term_is_off_in_the_first_round_and_acts_from_the_second(make_experiment, go):
    with_term, records = go(make_experiment("mdfl"), rounds=2)
    without, _ = go(make_experiment("mdfl", settings={"strength": 0}), "without", rounds=2)
    first, second = rounds_of(records)
    assert "boda loss" not in first["diagnostics"]
    assert set(second["diagnostics"]["boda loss"]) == {"a", "b", "c"}
    assert min(second["diagnostics"]["boda loss"].values()) > 0.1
    assert set(second["diagnostics"]["boda acts on"].values()) == {1.0}
    assert not torch.allclose(with_term.weights, without.weights, atol=1e-4)


def test_by_default_the_term_starts_after_a_quarter_of_the_rounds(make_experiment, go):
    plan = replace(PLAN, rounds=8)
    ours, records = go(make_experiment("mdfl", plan=plan), rounds=3)
    acting = ["boda loss" in record["diagnostics"] for record in rounds_of(records)]
    assert acting == [False, False, True]
    assert all("alignment" in record["diagnostics"] for record in rounds_of(records))
    plain, _ = go(make_experiment("fedavg", plan=plan), "plain", rounds=3)
    before, _ = go(make_experiment("mdfl", plan=plan), "two rounds", rounds=2)
    plain_before, _ = go(make_experiment("fedavg", plan=plan), "two plain rounds", rounds=2)
    assert torch.equal(before.weights, plain_before.weights)
    assert not torch.equal(ours.weights, plain.weights)


def test_the_term_draws_classes_together_across_domains(make_experiment, go):
    plan = LocalTrainingConfig(epochs=3, batch_size=4, lr=0.02, momentum=0.0)
    alignment = {}
    for strength in (0.0, 1.0):
        experiment = make_experiment("mdfl", settings={"strength": strength}, plan=plan)
        _, records = go(experiment, f"run-{strength}", rounds=6)
        alignment[strength] = rounds_of(records)[-1]["diagnostics"]["alignment"]
    assert alignment[1.0] < 0.9 * alignment[0.0]


@pytest.mark.parametrize(
    "settings",
    [
        {"nu": 0},
        {"divide_by_count": True},
        {"temperature": 3},
        {"momentum": 0.2},
        {"features_from": "trained"},
        {"mean_samples": 1},
        {"refresh_every": 2},
        {"distance_unit": "mean-distance"},
        {"strength": 1.0},
    ],
    ids=str,
)
def test_every_setting_changes_the_outcome(settings, uneven_data, make_experiment, go):
    options = {"data": uneven_data, "partition": DIRICHLET, "plan": PLAN}
    usual, _ = go(make_experiment("mdfl", **options), "usual", rounds=4)
    other, _ = go(make_experiment("mdfl", settings=settings, **options), "other", rounds=4)
    assert not torch.equal(usual.weights, other.weights)
    assert torch.isfinite(other.weights).all()


@pytest.mark.parametrize(
    "partition", [DIRICHLET, PartitionConfig(kind="mixed", clients_per_domain=2, heterogeneity=0.3)], ids=str
)
def test_the_table_holds_the_centroids_of_the_pooled_data(partition, make_experiment, go):
    experiment = make_experiment("mdfl", partition=partition)
    expected = literal_class_means(copy.deepcopy(experiment.network), experiment)
    checkpoint, _ = go(experiment, rounds=1)
    means, counts = checkpoint.server[MEANS], checkpoint.server[COUNTS]
    assert {tuple(pair) for pair in counts.nonzero().tolist()} == set(expected)
    for pair, (mean, count) in expected.items():
        assert counts[pair] == count
        torch.testing.assert_close(means[pair], mean, rtol=1e-4, atol=1e-5)


def test_the_held_out_domain_is_not_in_the_table(make_experiment, go):
    experiment = make_experiment("mdfl")
    checkpoint, _ = go(experiment, rounds=1)
    held = experiment.data.domains.index("held")
    assert checkpoint.server[COUNTS][held].sum() == 0 and checkpoint.server[MEANS][held].abs().sum() == 0


def test_the_table_travels_and_is_counted_and_declared(make_experiment, go):
    experiment = make_experiment("mdfl")
    checkpoint, records = go(experiment, rounds=2)
    weights = 3 * checkpoint.weights.nbytes
    table = 3 * (checkpoint.server[MEANS].nbytes + checkpoint.server[COUNTS].nbytes)
    first, second = rounds_of(records)
    assert first["bytes_down"] == weights and second["bytes_down"] == weights + table
    assert first["bytes_up"] == second["bytes_up"] == weights + table
    assert {SUMS, COUNTS} <= set(METHODS["mdfl"].sends)


def test_refreshing_seldom_saves_traffic(make_experiment, go):
    _, records = go(make_experiment("mdfl", settings={"refresh_every": 2}), rounds=3)
    first, second, third = (record["bytes_up"] for record in rounds_of(records))
    assert first == third > second


def test_one_domain_has_no_positives_and_is_fedavg(make_experiment, make_tiny_data, go):
    data = make_tiny_data(("a", "held"))
    ours, records = go(make_experiment("mdfl", data=data), rounds=2)
    plain, _ = go(make_experiment("fedavg", data=data), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)
    diagnostics = rounds_of(records)[1]["diagnostics"]
    assert diagnostics["boda loss"] == {"a": 0.0} and diagnostics["boda acts on"] == {"a": 0.0}


def test_samples_of_a_class_that_other_domains_lack_are_left_to_cross_entropy(
    make_experiment, make_tiny_data, go
):
    data = make_tiny_data(("a", "b", "held"), missing=("b", 1))
    checkpoint, records = go(make_experiment("mdfl", data=data), rounds=3)
    assert torch.isfinite(checkpoint.weights).all()
    acts_on = rounds_of(records)[-1]["diagnostics"]["boda acts on"]
    assert acts_on["b"] == 1.0 and 0.5 < acts_on["a"] < 0.8


def test_means_of_a_part_leave_the_counts_and_come_near_the_whole(uneven_data, make_experiment, go):
    whole, _ = go(make_experiment("mdfl", data=uneven_data), "whole", rounds=1)
    part, _ = go(make_experiment("mdfl", data=uneven_data, settings={"mean_samples": 4}), "part", rounds=1)
    enough, _ = go(make_experiment("mdfl", data=uneven_data, settings={"mean_samples": 99}), "all", rounds=1)
    assert torch.equal(part.server[COUNTS], whole.server[COUNTS])
    assert whole.server[COUNTS].max() > 4
    assert not torch.equal(part.server[MEANS], whole.server[MEANS])
    torch.testing.assert_close(enough.server[MEANS], whole.server[MEANS])
    off = (part.server[MEANS] - whole.server[MEANS]).norm(dim=-1)
    assert off.max() < 0.3 * whole.server[MEANS].norm(dim=-1).max()


@given(groups=st.lists(st.integers(0, 4), min_size=1, max_size=60), most=st.integers(1, 10))
def test_drawing_takes_the_wanted_number_of_each_group(groups, most):
    groups = torch.tensor(groups)
    drawn = at_most_of_each(groups, most, generator=torch.Generator().manual_seed(0))
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert torch.equal(groups[drawn].bincount(minlength=5), groups.bincount(minlength=5).clamp(max=most))


def test_a_pair_that_nobody_reports_keeps_its_mean_and_others_blend():
    state: dict[str, torch.Tensor] = {}
    sums = torch.tensor([[[2.0, 4.0], [0.0, 0.0]], [[3.0, 3.0], [0.0, 0.0]]])
    renew_table(state, sums, torch.tensor([[2, 0], [3, 0]]), momentum=0.25)
    assert state[MEANS].tolist() == [[[1, 2], [0, 0]], [[1, 1], [0, 0]]]
    sums = torch.tensor([[[5.0, 5.0], [8.0, 8.0]], [[0.0, 0.0], [0.0, 0.0]]])
    renew_table(state, sums, torch.tensor([[1, 2], [0, 0]]), momentum=0.25)
    assert state[MEANS].tolist() == [[[4, 4.25], [4, 4]], [[1, 1], [0, 0]]]
    assert state[COUNTS].tolist() == [[1, 2], [3, 0]]


def test_merging_takes_only_what_was_sent():
    assert merge_statistics([{}, {}]) is None
    sent = {SUMS: torch.ones(1, 2, 3), COUNTS: torch.tensor([[1, 0]])}
    sums, counts = merge_statistics([sent, {}, sent])
    assert sums.sum() == 12 and counts.tolist() == [[2, 0]]


def test_transferability_is_the_distance_of_means_and_a_lower_bound_of_equation_1():
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(2, 2, 50, 4, generator=draw, dtype=torch.float64)
    samples[0] += 2
    means = samples.mean(2)
    found = transferability(means, torch.full((2, 2), 50))["transferability"]
    assert found["domains"] == [0, 0, 1, 1] and found["classes"] == [0, 1, 0, 1]
    assert found["samples"] == [50] * 4
    for i, one in enumerate(samples.flatten(0, 1)):
        for j, other in enumerate(means.flatten(0, 1)):
            assert found["distances"][i][j] == pytest.approx(torch.dist(one.mean(0), other).item(), rel=1e-3)
            assert found["distances"][i][j] <= (one - other).norm(dim=1).mean() + 1e-3


def test_a_large_table_keeps_its_numbers_out_of_the_records():
    found = transferability(torch.randn(7, 6, 2), torch.ones(7, 6, dtype=torch.int64))
    assert set(found) == {"alignment"}
    assert "alignment" not in transferability(torch.randn(1, 6, 2), torch.ones(1, 6, dtype=torch.int64))


@pytest.mark.parametrize(
    "settings",
    [
        {"strength": -1},
        {"start": 1.0},
        {"start": -0.1},
        {"distance_unit": "two"},
        {"nu": -0.5},
        {"temperature": 0},
        {"momentum": 1},
        {"refresh_every": 0},
        {"mean_samples": 0},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method("mdfl", settings)


def test_regression_is_refused_with_the_reason(make_experiment, make_tiny_data, go):
    data = make_tiny_data()
    values = replace(
        data, task="regression", targets=data.targets.astype(np.float32), classes=(), fingerprint=""
    )
    with pytest.raises(UsageError, match=r"classes.*regression"):
        go(make_experiment("mdfl", data=values), rounds=1)
