"""Ridge from sums against ridge regression on the pooled samples, written out or by scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from literal_features import pooled_features, sent_by_all
from sklearn.linear_model import Ridge as PooledRidge

from unseen.engine import SerialEngine
from unseen.engine.experiment import RoundStart
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.closed_form.feature_sums import SUMS, VALIDATION_SUMS, FeatureBatch, FeatureSums
from unseen.methods.closed_form.linear_head import LinearHead
from unseen.methods.closed_form.ridge import draw_projection
from unseen.methods.closed_form.ridge_solution import (
    STRENGTHS,
    RidgeProblem,
    choose_strength,
    squared_error,
)
from unseen.models import Layout
from unseen.privacy import make_protection
from unseen.runs.checkpoint import StateStore

CLASSES = 3


def literal_head(features, values, weights, *, strength, scaling="common"):
    """Scikit-learn's ridge on standardized features; its penalty is not divided by the total weight."""
    weights = weights / weights.sum()
    mean = weights @ features
    variance = weights @ (features - mean) ** 2
    variance = np.full_like(variance, variance.mean()) if scaling == "common" else variance
    scale = np.where(variance > 1e-12, np.sqrt(variance), 1.0)
    fitted = PooledRidge(alpha=strength, tol=1e-12).fit(
        (features - mean) / scale, values, sample_weight=weights
    )
    weight = np.atleast_2d(fitted.coef_) / scale
    return weight, np.atleast_1d(fitted.intercept_) - weight @ mean


def head_of(checkpoint, experiment):
    tensors = Layout.of(experiment.network).tensors(checkpoint.weights)
    return tensors["head.weight"].double().numpy(), tensors["head.bias"].double().numpy()


@pytest.mark.parametrize("balance", ["samples", "clients", "classes"])
@pytest.mark.parametrize("scaling", ["each", "common"])
def test_equals_ridge_on_pooled_samples(balance, scaling, make_experiment, make_tiny_data, go):
    settings = {"strength": 0.3, "balance": balance, "scaling": scaling, "logit_scale": 5}
    experiment = make_experiment("ridge", settings=settings, data=make_tiny_data(missing=("b", 1)))
    features, labels, weights = pooled_features(experiment, balance=balance)
    expected = literal_head(features, 5 * np.eye(CLASSES)[labels], weights, strength=0.3, scaling=scaling)
    solved = experiment.method.solve(sent_by_all(experiment), outputs=experiment.data.outputs).head
    for mine, theirs in zip(solved, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6, atol=1e-6 * np.abs(theirs).max())
    checkpoint, _ = go(experiment, rounds=1)
    for mine, theirs in zip(head_of(checkpoint, experiment), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_regression_is_ridge_on_the_quantity_itself(make_experiment, tiny_regression):
    experiment = make_experiment("ridge", settings={"strength": 0.1}, data=tiny_regression)
    features, values, weights = pooled_features(experiment, balance="clients")
    expected = literal_head(features, values[:, None], weights, strength=0.1)
    solved = experiment.method.solve(sent_by_all(experiment), outputs=experiment.data.outputs).head
    for mine, theirs in zip(solved, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6, atol=1e-8)


def test_balance_changes_the_head(make_experiment, make_tiny_data):
    data = make_tiny_data(missing=("b", 1))
    heads = [
        experiment.method.solve(sent_by_all(experiment), outputs=experiment.data.outputs).head.weight
        for balance in ("samples", "clients", "classes")
        for experiment in [make_experiment("ridge", settings={"balance": balance, "strength": 1}, data=data)]
    ]
    distances = [float((one - other).norm()) for one, other in pairwise(heads)]
    assert min(distances) > 1e-3 * float(heads[0].norm())


def test_only_the_head_changes(make_experiment, make_normed_network, go):
    experiment = replace(make_experiment("ridge"), network=make_normed_network())
    layout, before = Layout.of(experiment.network), make_normed_network().state_dict()
    checkpoint, _ = go(experiment, rounds=1)
    for name, value in layout.tensors(checkpoint.weights).items():
        assert torch.equal(value, before[name]) != name.startswith("head."), name


def test_validation_error_from_sums_is_that_of_the_samples(make_experiment):
    experiment = make_experiment("ridge", settings={"balance": "samples", "logit_scale": 1})
    sent = sent_by_all(experiment)
    training, validation = (
        FeatureSums.unpack([extras[kind] for extras in sent], outputs=CLASSES)
        for kind in (SUMS, VALIDATION_SUMS)
    )
    problem = RidgeProblem.of(training, scaling="common")
    features, labels, _ = pooled_features(experiment, "validation")
    for strength in (1e-5, 0.1, 100):
        weight, bias = (part.numpy() for part in problem.solve(strength))
        residuals = np.eye(CLASSES)[labels] - features @ weight.T - bias
        direct = (residuals**2).sum(1).mean()
        assert problem.validation_error(strength, validation) == pytest.approx(direct, rel=1e-6)


def test_strength_is_the_one_that_a_search_over_samples_finds(make_experiment):
    experiment = make_experiment("ridge")
    solved = experiment.method.solve(sent_by_all(experiment), outputs=CLASSES)
    train, held = (pooled_features(experiment, split, balance="classes") for split in ("train", "validation"))
    errors = []
    for strength in STRENGTHS:
        weight, bias = literal_head(train[0], 8 * np.eye(CLASSES)[train[1]], train[2], strength=strength)
        residuals = 8 * np.eye(CLASSES)[held[1]] - held[0] @ weight.T - bias
        errors.append(held[2] / held[2].sum() @ (residuals**2).sum(1))
    assert solved.diagnostics["strength"] == STRENGTHS[int(np.argmin(errors))]
    np.testing.assert_allclose(solved.diagnostics["error_by_strength"], errors, rtol=1e-5)
    assert 0 < int(np.argmin(errors)) < len(STRENGTHS) - 1, "a choice within the range, not at its end"


def test_generalized_cross_validation_counts_samples_whatever_they_weigh():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 30, generator=generator, dtype=torch.float64)
    targets = features[:, :2] + 0.1 * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    plain = RidgeProblem.of(summed(features, targets), scaling="common")
    sums = summed(features, targets)
    light = FeatureSums(sums.matrix / 40, sums.outputs)
    weighted = RidgeProblem.of(light, scaling="common", samples=200.0)
    for strength in STRENGTHS:
        expected = plain.generalized_error(strength)
        assert weighted.generalized_error(strength) == pytest.approx(expected, rel=1e-9)
    assert RidgeProblem.of(light, scaling="common").generalized_error(STRENGTHS[0]) == float("inf")


def test_without_validation_samples_generalized_cross_validation_chooses():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    targets = features[:, :2] + torch.randn(40, 2, generator=generator, dtype=torch.float64)
    sums = summed(features, targets)
    problem = RidgeProblem.of(sums, scaling="each")
    centred = (features - features.mean(0)) / features.std(0, correction=0)
    for strength in (0.01, 1.0):
        inverse = torch.linalg.inv(centred.T @ centred + 40 * strength * torch.eye(6, dtype=torch.float64))
        hat = centred @ inverse @ centred.T + 1 / 40
        residuals = targets - hat @ targets
        literal = residuals.square().sum() / 40 / (1 - hat.trace() / 40) ** 2
        assert problem.generalized_error(strength) == pytest.approx(float(literal), rel=1e-9)
    found = choose_strength(problem, FeatureSums.zeros(6, 2))
    assert found.strength == min(STRENGTHS, key=problem.generalized_error)


def summed(features, targets, weights=None):
    sums = FeatureSums.zeros(features.shape[1], targets.shape[1])
    weights = torch.ones(len(features), dtype=torch.float64) if weights is None else weights
    sums.add(FeatureBatch(features, targets, weights))
    return sums


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5), st.integers(1, 3))
def test_sums_of_parts_are_those_of_the_whole(seed, samples, size, outputs):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    targets = torch.randn(samples, outputs, generator=generator, dtype=torch.float64)
    weights = torch.rand(samples, generator=generator, dtype=torch.float64)
    whole = summed(features, targets, weights)
    cut = samples // 2
    parts = [
        summed(features[part], targets[part], weights[part]).pack()
        for part in (slice(cut), slice(cut, samples))
    ]
    joined = FeatureSums.unpack(parts, outputs=outputs)
    torch.testing.assert_close(joined.matrix, whole.matrix)
    torch.testing.assert_close(joined.count, weights.sum())
    torch.testing.assert_close(joined.targets, weights @ targets)
    torch.testing.assert_close(joined.squares, weights @ targets.square().sum(1))
    torch.testing.assert_close(joined.features, weights @ features)
    torch.testing.assert_close(joined.cross, (features * weights[:, None]).T @ targets)
    torch.testing.assert_close(joined.products, (features * weights[:, None]).T @ features)
    mean, scale = features[0], torch.arange(1, size + 1).double()
    moved = summed((features - mean) / scale, targets, weights)
    torch.testing.assert_close(whole.standardized(mean, scale).matrix, moved.matrix)
    head = LinearHead(torch.randn(outputs, size, generator=generator).double(), torch.ones(outputs).double())
    residuals = targets - features @ head.weight.T - head.bias
    literal = float(weights @ residuals.square().sum(1) / weights.sum())
    assert squared_error(head, whole) == pytest.approx(literal, rel=1e-6, abs=1e-9)


def test_a_constant_feature_gets_no_weight():
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    features[:, 1] = 7.3
    head = RidgeProblem.of(summed(features, features[:, :1]), scaling="each").solve(1e-3)
    assert abs(float(head.weight[0, 1])) < 1e-9 and torch.isfinite(head.bias).all()


def test_secure_sum_gives_the_same_head(make_experiment, go):
    plain, _ = go(make_experiment("ridge"), "plain", rounds=1)
    hidden, records = go(
        replace(make_experiment("ridge"), protection=make_protection("secure-sum")), "hidden", rounds=1
    )
    torch.testing.assert_close(hidden.weights, plain.weights, rtol=1e-5, atol=1e-6)
    (entry,) = (record for record in records.entries if record["event"] == "round")
    assert "not protected" not in [line["protected"] for line in entry["left"] if line["kind"] == SUMS]


def test_records_say_what_left_and_bytes_are_counted(make_experiment, go):
    experiment = make_experiment("ridge")
    _, records = go(experiment, rounds=1)
    (entry,) = (record for record in records.entries if record["event"] == "round")
    size = 1 + CLASSES + experiment.network.feature_size
    left = {line["kind"]: line["bytes"] for line in entry["left"]}
    assert left[SUMS] == left[VALIDATION_SUMS] == 8 * size * (size + 1) // 2
    state = 4 * Layout.of(experiment.network).size
    assert entry["bytes_up"] == 3 * (state + left[SUMS] + left[VALIDATION_SUMS])


def test_workers_send_the_same_bits_as_one_process(make_experiment, tmp_path):
    alone = SerialEngine(make_experiment("ridge"), StateStore(tmp_path / "alone"))
    together = WorkerEngine(
        make_experiment("ridge"), StateStore(tmp_path / "both"), workers=2, threads=1, max_clients=3
    )
    try:
        start = alone.workspace.flat.read()
        sent = [engine.train([0, 1, 2], RoundStart(1, start))[1] for engine in (alone, together)]
    finally:
        together.close()
    for mine, theirs in zip(*sent, strict=True):
        assert mine.update.loss == theirs.update.loss
        assert all(torch.equal(value, theirs.update.extras[key]) for key, value in mine.update.extras.items())


def test_a_second_round_repeats_the_first(make_experiment, go):
    once, _ = go(make_experiment("ridge"), "once", rounds=1)
    twice, _ = go(make_experiment("ridge"), "twice", rounds=2)
    assert torch.equal(once.weights, twice.weights)
    assert make_method("ridge").default_rounds == 1 and make_method("ridge").default_train == "head"


def test_projection_is_ridge_on_projected_features_folded_into_the_head(make_experiment, go):
    settings = {"strength": 0.3, "balance": "samples", "logit_scale": 1, "projection": 7}
    experiment = make_experiment("ridge", settings=settings)
    features, labels, weights = pooled_features(experiment)
    basis = draw_projection(features.shape[1], 7, seed=experiment.seed).numpy()
    np.testing.assert_allclose(basis.T @ basis, np.eye(7), atol=1e-12)
    small = literal_head(features @ basis, np.eye(CLASSES)[labels], weights, strength=0.3)
    checkpoint, records = go(experiment, rounds=1)
    weight, bias = head_of(checkpoint, experiment)
    np.testing.assert_allclose(weight, small[0] @ basis.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(bias, small[1], rtol=1e-4, atol=1e-5)
    (entry,) = (record for record in records.entries if record["event"] == "round")
    left = {line["kind"]: line["values"] for line in entry["left"]}
    assert left[SUMS] == left[VALIDATION_SUMS] == 11 * 12 // 2
    described = experiment.method.describe_extras(experiment.network)
    assert {kind: value.numel() for kind, value in described.items()} == {
        kind: left[kind] for kind in (SUMS, VALIDATION_SUMS)
    }


def test_projection_depends_on_the_seed_and_changes_nothing_unless_it_reduces(make_experiment, go):
    size = make_experiment("ridge").network.feature_size
    assert draw_projection(size, size, seed=0) is None and draw_projection(size, 0, seed=0) is None
    assert not torch.equal(draw_projection(size, 7, seed=0), draw_projection(size, 7, seed=1))
    one, other, reduced = (
        go(make_experiment("ridge", settings={"projection": value}), str(value), rounds=1)[0].weights
        for value in (0, size, 7)
    )
    assert torch.equal(one, other) and not torch.allclose(one, reduced, atol=1e-3)


@pytest.mark.parametrize("protection", ["secure-sum", "encrypted"])
def test_projection_is_served_by_protections(protection, make_experiment, go):
    settings = {"projection": 9}
    plain, _ = go(make_experiment("ridge", settings=settings), "plain", rounds=1)
    hidden, _ = go(
        replace(make_experiment("ridge", settings=settings), protection=make_protection(protection)),
        "hidden",
        rounds=1,
    )
    torch.testing.assert_close(hidden.weights, plain.weights, rtol=1e-5, atol=1e-6)


def test_a_negative_projection_is_refused():
    with pytest.raises(UsageError, match="'projection' of ridge must be at least 0, not -1"):
        make_method("ridge", {"projection": -1})


@pytest.mark.parametrize("settings", [{"strength": 0}, {"strength": -1}, {"logit_scale": 0}])
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UsageError, match="must be above 0"):
        make_method("ridge", settings)
