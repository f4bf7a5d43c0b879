"""FedPFT against scikit-learn's mixtures, a literal head, and hand computations of its privacy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_features import pooled_features, sent_by_all
from scipy import integrate
from scipy.stats import norm
from sklearn.mixture import GaussianMixture
from torch.nn import functional as F

from unseen.engine import RoundStart
from unseen.engine.experiment import Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedpft.drawn_features import draw_features, regress_head, train_head
from unseen.methods.fedpft.fedpft import COUNTS, MIXTURES
from unseen.methods.fedpft.gaussian_mixtures import Mixture, fit_mixture
from unseen.methods.fedpft.private_gaussians import (
    SENSITIVITY,
    add_noise,
    find_noise_multiplier,
    gaussian_delta,
    read_gaussian,
    sum_clipped,
)
from unseen.privacy import make_protection
from unseen.privacy.dp.noise import NoiseStream
from unseen.seeding import derive_seed
from unseen.training import LocalTrainingConfig, Update

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.0)
PRIVATE = {"components": 1, "epsilon": 4.0, "noise_seed": "run"}


def random_features(count, size, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_clients_send_the_mixtures_of_their_classes(make_experiment, make_tiny_data):
    experiment = make_experiment(
        "fedpft",
        data=make_tiny_data(missing=("b", 1)),
        settings={"components": 2, "samples_per_component": 2},
    )
    size = Workspace(experiment).deployed.feature_size
    position = 0
    for extras, client in zip(sent_by_all(experiment), range(len(experiment.federation)), strict=True):
        counts = extras[COUNTS].tolist()
        features, labels, _ = pooled_features(experiment)
        own = slice(position, position + sum(counts))
        position += sum(counts)
        name = experiment.federation[client].name
        for label, count in enumerate(counts):
            rows = features[own][labels[own] == label]
            assert len(rows) == count
            if not count:
                assert not extras[MIXTURES][label].any()
                continue
            seed = derive_seed(experiment.seed, "fedpft: mixture", name, label) % 2**32
            literal = GaussianMixture(
                min(2, max(count // 2, 1)), covariance_type="diag", tol=1e-4, max_iter=200, random_state=seed
            ).fit(rows)
            sent = Mixture.unpack(extras[MIXTURES][label], features=size)
            known = sent.weights > 0
            np.testing.assert_allclose(sent.weights[known], literal.weights_, rtol=1e-5)
            np.testing.assert_allclose(sent.means[known], literal.means_, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(sent.variances[known], literal.covariances_, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_one_component_has_the_closed_form_of_scikit_learn(covariance):
    features = random_features(30, 4)
    fitted = fit_mixture(features, components=1, covariance=covariance, seed=0)
    kind = {"diagonal": "diag", "spherical": "spherical"}[covariance]
    literal = GaussianMixture(1, covariance_type=kind).fit(features.numpy())
    np.testing.assert_allclose(fitted.means, literal.means_)
    np.testing.assert_allclose(fitted.variances.flatten(), literal.covariances_.flatten())


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_draws_have_the_moments_of_the_mixture(covariance):
    features = torch.cat([random_features(50, 3) * 0.1 + 5, random_features(150, 3, seed=1) * 0.5 - 1])
    mixture = fit_mixture(features, components=2, covariance=covariance, seed=3)
    again = Mixture.unpack(mixture.pack(4), features=3)
    assert again.weights.shape == (4,) and float(again.weights.sum()) == pytest.approx(1)
    drawn = again.sample(20_000, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), features.mean(0), atol=0.1, rtol=0)
    torch.testing.assert_close(drawn.std(0), features.std(0), atol=0.1, rtol=0)
    assert float((drawn[:, 0] > 2).double().mean()) == pytest.approx(0.25, abs=0.01)


def test_the_server_trains_as_many_steps_of_adamw_as_a_literal_loop_on_its_draws():
    drawn = draw_features(
        [
            (
                "a",
                Mixture(torch.ones(1), torch.ones(1, 4), torch.ones(1, 4)).pack(1).repeat(2, 1, 1),
                torch.tensor([9, 4]),
            )
        ],
        features=4,
        draws=2.0,
        seed=0,
    )
    assert drawn.labels.bincount().tolist() == [18, 8]
    options = {"lr": 0.1, "epochs": 3, "batch_size": 8}
    head, _ = train_head(drawn, outputs=2, generator=torch.Generator().manual_seed(1), **options)
    mean, scale = drawn.features.mean(0), drawn.features.var(0, correction=0).mean().sqrt()
    layer, order = torch.nn.Linear(4, 2), torch.Generator().manual_seed(1)
    torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        for positions in torch.randperm(26, generator=order).split(8):
            optimizer.zero_grad()
            outputs = layer(((drawn.features[positions] - mean) / scale).float())
            F.cross_entropy(outputs, drawn.labels[positions]).backward()
            optimizer.step()
    expected = layer(((drawn.features - mean) / scale).float()).double()
    torch.testing.assert_close(drawn.features @ head.weight.T + head.bias, expected, rtol=1e-4, atol=1e-5)


def test_both_solvers_separate_what_clients_describe(make_experiment, go):
    for solver in ("adamw", "ridge"):
        _, records = go(make_experiment("fedpft", settings={"solver": solver}), solver, rounds=1)
        last = [record for record in records.entries if record["event"] == "evaluation"][-1]
        assert min(score["metrics"]["accuracy"] for score in last["scores"]) > 0.8


def test_ridge_on_many_draws_approaches_ridge_on_the_samples():
    features = torch.cat([random_features(200, 3) + 1, random_features(200, 3, seed=1) - 1])
    rows = torch.stack(
        [
            fit_mixture(part, components=1, covariance="diagonal", seed=0).pack(1)
            for part in features.split(200)
        ]
    )
    sent = [("a", rows, torch.tensor([200, 200]))]
    drawn = draw_features(sent, features=3, draws=50, seed=0)
    found, _ = regress_head(drawn, outputs=2)
    literal, _ = regress_head(
        drawn._replace(features=features, labels=torch.arange(2).repeat_interleave(200)), outputs=2
    )
    torch.testing.assert_close(found.weight, literal.weight, atol=0.25, rtol=0)


def test_an_update_that_is_no_mixture_is_refused(make_experiment):
    experiment = make_experiment("fedpft")
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))

    def reason(**extras):
        changed = replace(update, extras={**update.extras, **extras})
        return experiment.method.explain_unusable_extras(changed, plan=PLAN, outputs=3, own=[0])

    assert reason() == ""
    assert "class counts" in reason(**{COUNTS: update.extras[COUNTS] + 1})
    assert "no mixture" in reason(**{MIXTURES: -update.extras[MIXTURES]})
    assert "no mixture" in reason(**{MIXTURES: 2 * update.extras[MIXTURES]})
    described = experiment.method.describe_extras(workspace.module)
    assert {kind: (value.shape, value.dtype) for kind, value in described.items()} == {
        kind: (value.shape, value.dtype) for kind, value in update.extras.items()
    }


@given(st.integers(0, 10_000), st.floats(0.1, 100))
@settings(max_examples=50, deadline=None)
def test_replacing_a_sample_changes_the_sums_by_at_most_the_sensitivity(seed, size):
    generator = torch.Generator().manual_seed(seed)
    features = size * torch.randn(6, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (6,), generator=generator)
    other_features, other_labels = features.clone(), labels.clone()
    other_features[0] = -features[0] if seed % 2 else features[1]
    other_labels[0] = seed // 2 % 2
    one, other = (
        sum_clipped(values, classes, classes=2, clip_norm=1.5)
        for values, classes in ((features, labels), (other_features, other_labels))
    )
    assert float((one - other).norm()) <= SENSITIVITY + 1e-9


def test_the_sensitivity_is_reached():
    axis = torch.tensor([[7.0, 0.0]], dtype=torch.float64)
    one, other = (sum_clipped(axis, torch.tensor([label]), classes=2, clip_norm=2.0) for label in (0, 1))
    assert one[0].tolist() == [1, 1, 0, 1, 0] and float((one - other).norm()) == pytest.approx(math.sqrt(6))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (4.0, 1e-5), (20.0, 1e-3)])
def test_the_noise_is_exactly_what_the_guarantee_needs(epsilon, delta):
    multiplier = find_noise_multiplier(epsilon, delta)
    # delta = integral of max(p - e^epsilon q, 0) for the densities p and q of the two neighbours' releases
    start = epsilon * multiplier**2 + 0.5
    mass, _ = integrate.quad(
        lambda x: norm.pdf(x, 1, multiplier) - math.exp(epsilon) * norm.pdf(x, 0, multiplier),
        start,
        start + 12 * multiplier,
        epsabs=1e-14,
    )
    assert mass == pytest.approx(delta, rel=1e-3)
    assert gaussian_delta(0.99 * multiplier, epsilon) > delta
    if epsilon < 1:
        assert multiplier < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_noise_of_that_scale_is_added_to_every_sum():
    sums = torch.zeros(20, 1001, dtype=torch.float64)
    noised = add_noise(sums, multiplier=2.0, stream=NoiseStream(b"key", "test"))
    assert float(noised.std()) == pytest.approx(2 * math.sqrt(6), rel=0.02)
    assert float(noised[:, 0].std()) == pytest.approx(2 * math.sqrt(6), rel=0.5)


@pytest.mark.parametrize("covariance", ["diagonal", "spherical"])
def test_without_noise_the_private_gaussian_is_the_plain_one(covariance):
    features = random_features(40, 3)
    sums = sum_clipped(features, torch.zeros(40, dtype=torch.int64), classes=1, clip_norm=100.0)
    count, found = read_gaussian(sums[0], samples=40, clip_norm=100.0, covariance=covariance)
    plain = fit_mixture(features, components=1, covariance=covariance, seed=0)
    assert count == 40
    for value, expected in zip(found, plain, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-8)


def test_epsilon_puts_noise_on_all_that_leaves_and_a_second_round_repeats_it(make_experiment):
    experiment = make_experiment("fedpft", settings=PRIVATE)
    workspace = Workspace(experiment)
    first, second = (
        workspace.train_client(0, {}, RoundStart(number, workspace.flat.read())) for number in (1, 2)
    )
    plain = sent_by_all(make_experiment("fedpft", settings={"components": 1}))[0]
    assert first.loss == 0.0
    assert not torch.equal(first.extras[MIXTURES], plain[MIXTURES])
    assert all(torch.equal(first.extras[kind], second.extras[kind]) for kind in (MIXTURES, COUNTS))
    delta = min(1e-5, first.samples**-1.1)
    expected = math.sqrt(6) * find_noise_multiplier(4.0, delta)
    assert first.diagnostics == {"noise_std": pytest.approx(expected)}
    check = experiment.method.explain_unusable_extras
    assert check(first, plan=PLAN, outputs=3, own=[0]) == ""


def test_secret_noise_is_kept_by_the_client(make_experiment):
    experiment = make_experiment("fedpft", settings={**PRIVATE, "noise_seed": "secret"})
    workspace = Workspace(experiment)
    start, states = RoundStart(1, workspace.flat.read()), ({}, {})

    def send(state) -> Update:
        return workspace.train_client(0, state, start)

    one, other = send(states[0]), send(states[1])
    assert not torch.equal(one.extras[MIXTURES], other.extras[MIXTURES])
    assert torch.equal(send(states[0]).extras[MIXTURES], one.extras[MIXTURES])


def test_hardly_any_privacy_learns_as_well_as_none(make_experiment, go):
    experiment = make_experiment("fedpft", settings={**PRIVATE, "epsilon": 1e6, "clip_norm": 2.0})
    _, records = go(experiment, rounds=1)
    last = [record for record in records.entries if record["event"] == "evaluation"][-1]
    assert min(score["metrics"]["accuracy"] for score in last["scores"]) > 0.8


def test_sums_alone_cannot_serve_it():
    reason = make_protection("secure-sum").incompatibility(make_method("fedpft").traits)
    assert reason is not None and MIXTURES in reason


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"components": 0}, "at least 1"),
        ({"draws": 0}, "above 0"),
        ({"epsilon": 1.0}, "components=1"),
        ({"epsilon": -1.0, "components": 1}, "above 0"),
        ({"delta": 1.0}, "between 0 and 1"),
    ],
)
def test_settings_out_of_range_are_refused(chosen, reason):
    with pytest.raises(UsageError, match=reason):
        make_method("fedpft", chosen)


def test_regression_is_refused(make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match=r"fedpft needs classes.*--method ridge"):
        go(make_experiment("fedpft", data=tiny_regression), rounds=1)
