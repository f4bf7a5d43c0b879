"""Detailed sums: they add up over sites, leave the plain ones as they are, and what is sent is checked."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from unseen.calibration import Measurement, Scaling
from unseen.errors import UnseenError
from unseen.tasks import TASKS
from unseen.tasks.detail_accumulators import DetailAccumulator, make_measured
from unseen.tasks.detail_metrics import find_worst

CLASSES = Measurement("classes", Scaling("temperature", (0.7,)))


def empty(measurement, outputs=3, task="classification", scale=1.0):
    made = make_measured(TASKS[task], outputs, target_scale=scale, measurement=measurement)
    assert isinstance(made, DetailAccumulator)
    return made


def drawn(seed, samples=60):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(3, (samples,), generator=generator)
    logits = torch.randn(samples, 3, generator=generator) + 2 * torch.eye(3)[targets]
    return logits, targets


def added(measurement, *parts):
    total = empty(measurement)
    for logits, targets in parts:
        total.add(logits, targets)
    return total


@settings(max_examples=15)
@given(seed=st.integers(0, 500), cut=st.integers(1, 59))
def test_two_sites_are_one_and_the_metrics_those_of_sklearn(seed, cut):
    logits, targets = drawn(seed)
    pooled = added(CLASSES, (logits, targets))
    first, second = (
        empty(CLASSES).from_arrays(added(CLASSES, (logits[half], targets[half])).to_arrays())
        for half in (slice(0, cut), slice(cut, None))
    )
    first.merge(second)
    assert first.details().values == pytest.approx(pooled.details().values, abs=1e-9)
    assert first.metrics() == pytest.approx(pooled.metrics(), rel=1e-6)
    found, chances = first.details(), logits.double().softmax(1).numpy()
    truth, guess = targets.numpy(), chances.argmax(1)
    assert found.values["macro_f1"] == pytest.approx(metrics.f1_score(truth, guess, average="macro"))
    assert found.values["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(truth, guess))
    auroc = metrics.roc_auc_score(truth, chances, multi_class="ovr", labels=[0, 1, 2])
    assert abs(found.values["auroc"] - auroc) <= found.widths.get("auroc", 0) + 1e-9
    scaled = (0.7 * logits.double()).softmax(1).numpy()
    assert found.values["nll"] == pytest.approx(metrics.log_loss(truth, scaled, labels=[0, 1, 2]))


@settings(max_examples=15)
@given(seed=st.integers(0, 500), scale=st.floats(0.1, 50))
def test_errors_of_quantities_are_those_of_sklearn(seed, scale):
    generator = np.random.default_rng(seed)
    truth = generator.normal(3, 1, 40)
    guess = truth + generator.normal(0, 0.3, 40)
    sums = empty(Measurement("values"), outputs=1, task="regression", scale=scale)
    for half in (slice(0, 11), slice(11, None)):
        sums.add(torch.tensor(guess[half, None]), torch.tensor(truth[half]))
    found = sums.details().values
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(truth * scale, guess * scale), rel=1e-9)
    assert found["r2"] == pytest.approx(metrics.r2_score(truth, guess), abs=1e-9)
    assert sums.sums["errors"].sum() == 40


def test_the_plain_sums_are_the_same_bits():
    logits, targets = drawn(1)
    plain = TASKS["classification"].make_accumulator(3)
    plain.add(logits, targets)
    detailed = added(CLASSES, (logits, targets))
    assert detailed.metrics() == plain.metrics()
    assert detailed.numbers - detailed.detail_numbers == plain.numbers


def test_a_site_may_keep_the_details():
    mine, theirs = added(CLASSES, drawn(0)), added(CLASSES, drawn(1))
    other = empty(CLASSES).from_arrays(theirs.plain.to_arrays())
    mine.merge(other)
    assert mine.count == 120 and not mine.sums and not mine.details().values
    assert not mine.explain_impossible(120)


def test_impossible_details_are_refused():
    arrays = added(CLASSES, drawn(0)).to_arrays()
    with pytest.raises(UnseenError, match="do not fit"):
        empty(CLASSES).from_arrays({name: a for name, a in arrays.items() if name != "detail:ranking"})
    with pytest.raises(UnseenError, match="expected float64"):
        empty(CLASSES).from_arrays(arrays | {"detail:proper_after": np.zeros(3)})
    for name in ("ranking", "true_lac", "all_aps"):
        worse = arrays[f"detail:{name}"].copy()
        worse.reshape(-1)[0] += 1
        reason = empty(CLASSES).from_arrays(arrays | {f"detail:{name}": worse}).explain_impossible(60)
        assert name in reason
    worse = arrays["detail:reliability_after"] * 2
    lying = empty(CLASSES).from_arrays(arrays | {"detail:reliability_after": worse})
    assert "no probabilities have" in lying.explain_impossible(60)
    assert not empty(CLASSES).from_arrays(arrays).explain_impossible(60)


@pytest.mark.parametrize(
    "measurement", [CLASSES, Measurement("temperature"), Measurement("vector"), Measurement("values")]
)
def test_a_measurement_travels_as_json_and_knows_its_arrays(measurement):
    sent = json.loads(json.dumps(measurement.to_dict()))
    assert Measurement.from_dict(sent, outputs=3) == measurement
    outputs = 1 if measurement.kind == "values" else 3
    logits, targets = drawn(0)
    found = measurement.sums(logits[:, :outputs].double().numpy(), targets.numpy())
    form = {name: (array.shape, array.dtype) for name, array in measurement.zeros(outputs).items()}
    assert form == {name: (array.shape, array.dtype) for name, array in found.items()}


@pytest.mark.parametrize("asked", [None, {"kind": "rows"}, {"kind": "rows", "scaling": Scaling().to_dict()}])
def test_an_unknown_measurement_is_refused(asked):
    with pytest.raises(UnseenError):
        Measurement.from_dict(asked, outputs=3)


def test_the_worst_is_where_a_metric_is_least_good():
    values = {
        "a": {"auroc": 0.9, "ece": 0.2},
        "b": {"auroc": 0.7, "ece": 0.1},
        "c": {"auroc": None, "ece": 0.0},
    }
    assert find_worst(values) == {
        "auroc": {"where": "b", "value": 0.7},
        "ece": {"where": "a", "value": 0.2},
    }
