"""Temperature and vector scaling from sums, against scipy's minimizers on the samples themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from unseen.calibration.reliability import log_softmax
from unseen.calibration.scaling import (
    RIDGE,
    Scaling,
    fit_temperature,
    fit_vector,
    temperature_sums,
    vector_sums,
)
from unseen.errors import UnseenError, UsageError


def drawn(seed, samples=150, classes=4, sharpness=3.0):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, classes, samples)
    return sharpness * (generator.normal(size=(samples, classes)) + np.eye(classes)[targets]), targets


def loss(logits, targets):
    return -log_softmax(logits)[np.arange(len(targets)), targets].sum()


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), sharpness=st.floats(0.3, 15))
def test_temperature_is_that_of_scipy(seed, sharpness):
    logits, targets = drawn(seed, sharpness=sharpness)
    found = fit_temperature(temperature_sums(logits, targets))
    best = minimize_scalar(
        lambda x: loss(logits / np.exp(x), targets), bounds=(-3, 3), method="bounded", options={"xatol": 1e-9}
    )
    assert found.temperature == pytest.approx(np.exp(best.x), rel=1e-3)
    assert loss(found.apply(logits), targets) <= best.fun * (1 + 1e-7)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 150), max_size=4))
def test_pooled_is_federated(seed, cuts):
    logits, targets = drawn(seed)
    parts = zip(np.split(logits, sorted(cuts)), np.split(targets, sorted(cuts)), strict=True)
    together = sum(temperature_sums(*part) for part in parts)
    pooled = fit_temperature(temperature_sums(logits, targets))
    assert fit_temperature(together).weights == pytest.approx(pooled.weights, rel=1e-9)


def test_slopes_are_those_of_the_losses():
    logits, targets = drawn(0)
    sums, step = temperature_sums(logits, targets), 1e-5
    middle = len(sums[0]) // 2
    assert sums[0, middle] == pytest.approx(loss(logits, targets))
    numeric = (loss(logits * np.exp(-step), targets) - loss(logits * np.exp(step), targets)) / (2 * step)
    assert sums[1, middle] == pytest.approx(numeric, rel=1e-5)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_ends_of_the_grid(sign):
    logits, targets = np.eye(3) * sign, np.arange(3)
    assert fit_temperature(temperature_sums(logits, targets)).temperature == pytest.approx(
        0.05 if sign > 0 else 20
    )


def test_sums_that_are_not_finite_leave_the_logits_alone():
    assert fit_temperature(np.full((2, 61), np.nan)) == Scaling()


@settings(max_examples=15)
@given(seed=st.integers(0, 200))
def test_vector_scaling_is_that_of_scipy(seed):
    logits, targets = drawn(seed, samples=200, classes=3)
    logits = logits * [1, 2, 0.5] + [0, 1, -1]
    start = fit_temperature(temperature_sums(logits, targets))
    asked = []

    def ask(scaling):
        asked.append(scaling)
        halves = zip(np.split(logits, [70]), np.split(targets, [70]), strict=True)
        return sum(vector_sums(*half, scaling) for half in halves)

    found = fit_vector(ask, start, classes=3)
    origin = np.concatenate([np.full(3, start.weights[0]), np.zeros(3)])

    def objective(place):
        pull = RIDGE / 2 * ((place - origin) ** 2).sum()
        return loss(logits * place[:3] + place[3:], targets) + pull

    best = minimize(objective, origin, method="BFGS", options={"gtol": 1e-8})
    assert np.concatenate([found.weights, found.biases]) == pytest.approx(best.x, abs=1e-4)
    assert len(asked) <= 12


def test_vector_scaling_of_many_classes_is_refused():
    with pytest.raises(UsageError, match="at most 100"):
        fit_vector(lambda scaling: np.zeros(1), Scaling(), classes=101)


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"kind": "vector", "weights": [1.0], "biases": []},
        {"kind": "other", "weights": [1.0], "biases": [0.0]},
        {"kind": "temperature", "weights": [float("nan")], "biases": [0.0]},
        {"kind": "vector", "weights": [1.0, 1.0], "biases": [0.0, 0.0]},
    ],
)
def test_a_scaling_from_elsewhere_is_checked(values):
    with pytest.raises(UnseenError):
        Scaling.from_dict(values, outputs=3)
    fine = Scaling("vector", (1.0, 2.0, 3.0), (0.0, 0.0, 1.0))
    assert Scaling.from_dict(fine.to_dict(), outputs=3) == fine
