"""The loss-threshold attack: exact numbers on known losses, intervals, and a model that memorised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch.nn import functional as F

from unseen.audit import membership
from unseen.audit.membership import judge, member_test
from unseen.data import Samples


def test_numbers_agree_with_scikit_learn():
    generator = np.random.default_rng(0)
    inside, outside = generator.gamma(1, 1, 300).round(1), generator.gamma(2, 1, 200).round(1)
    found = judge(inside, outside, generator=np.random.default_rng(1))
    truth = np.r_[np.ones(300), np.zeros(200)]
    scores = -np.r_[inside, outside]
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert found.auc.value == pytest.approx(roc_auc_score(truth, scores))
    assert found.advantage.value == pytest.approx((true - false).max())
    for rate, share in found.found.items():
        assert share.value == pytest.approx(true[false <= float(rate)].max())
    assert found.auc.low < found.auc.value < found.auc.high


def test_intervals_hold_the_truth_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(membership, "DRAWS", 300)
    generator = np.random.default_rng(2)
    held = 0
    for _ in range(40):
        same = generator.normal(size=(2, 80))
        auc = judge(same[0], same[1], generator=generator).auc
        held += auc.low <= 0.5 <= auc.high
    assert held >= 34


def test_too_few_others_tell_nothing_of_rare_false_alarms():
    found = judge(np.zeros(50), np.ones(50), generator=np.random.default_rng(0))
    assert list(found.found) == ["0.1"]
    assert found.auc.value == 1
    assert found.advantage.value == 1


def test_a_model_that_memorised_gives_its_members_away(make_experiment, make_tiny_data, monkeypatch):
    monkeypatch.setattr(membership, "DRAWS", 200)
    data = make_tiny_data(per_class=12)
    data = replace(data, targets=np.random.default_rng(3).integers(0, 3, len(data.targets)))
    experiment = make_experiment(data=data)
    network = experiment.network
    fresh = member_test(experiment, network)
    members = np.concatenate([experiment.evaluation_indices(domain, "train") for domain in "abc"])
    samples = Samples(data, members)
    batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(network(batch.inputs), batch.targets).backward()
        optimiser.step()
    trained = member_test(experiment, network)
    assert fresh is not None
    assert trained is not None
    assert fresh.members == trained.members == len(members)
    assert fresh.auc.low < 0.5
    assert trained.auc.low > 0.6
