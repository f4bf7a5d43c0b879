"""Class means from sums against scikit-learn's nearest centroid on the pooled samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from literal_features import pooled_features, sent_by_all
from sklearn.neighbors import NearestCentroid

from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.closed_form.class_means import CLASS_SUMS
from unseen.privacy import make_protection


def standardized(features, weights):
    weights = weights / weights.sum()
    mean = weights @ features
    variance = weights @ (features - mean) ** 2
    return (features - mean) / np.sqrt(variance.mean())


def test_equals_the_nearest_centroid_of_pooled_samples(make_experiment, make_tiny_data):
    data = make_tiny_data(missing=("b", 1))
    experiment = make_experiment("class-means", settings={"balance": "samples"}, data=data)
    features, labels, weights = pooled_features(experiment)
    judged, _, _ = pooled_features(experiment, "test")
    together = standardized(np.concatenate([features, judged]), np.r_[weights, np.zeros(len(judged))])
    fitted = NearestCentroid().fit(together[: len(features)], labels)
    head = experiment.method.solve(sent_by_all(experiment), outputs=3).head
    scores = np.concatenate([features, judged]) @ head.weight.numpy().T + head.bias.numpy()
    assert (scores.argmax(1) == fitted.predict(together)).all()
    size = features.shape[1]
    literal = 32 / size * (together @ fitted.centroids_.T - (fitted.centroids_**2).sum(1) / 2)
    np.testing.assert_allclose(scores, literal, rtol=1e-6, atol=1e-8)


def test_balanced_means_are_means_of_the_clients_means(make_experiment, make_tiny_data):
    sent = sent_by_all(make_experiment("class-means", data=make_tiny_data(missing=("b", 1))))
    for extras in sent:
        assert set(extras[CLASS_SUMS][:-1, -1].round(decimals=9).tolist()) <= {0.0, 1.0}
    total = sum(extras[CLASS_SUMS] for extras in sent)
    assert total[:-1, -1].round().tolist() == [3, 2, 3] and torch.isfinite(total).all()


def test_a_class_without_samples_is_never_chosen():
    method = make_method("class-means")
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    nothing, squares = torch.zeros(4).double(), features.square().sum(0)
    sums = torch.stack([features[:15].sum(0), nothing, features[15:].sum(0), squares])
    weights = torch.tensor([15.0, 0.0, 15.0, 0.0], dtype=torch.float64)
    head = method.solve([{CLASS_SUMS: torch.cat([sums, weights[:, None]], dim=1)}], outputs=3).head
    assert 1 not in (features @ head.weight.T + head.bias).argmax(1)


def test_secure_sum_gives_the_same_head(make_experiment, go):
    plain, _ = go(make_experiment("class-means"), "plain", rounds=1)
    protected = replace(make_experiment("class-means"), protection=make_protection("secure-sum"))
    hidden, _ = go(protected, "hidden", rounds=1)
    torch.testing.assert_close(hidden.weights, plain.weights, rtol=1e-5, atol=1e-6)


def test_regression_is_refused(make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match=r"class-means needs classes.*--method ridge"):
        go(make_experiment("class-means", data=tiny_regression), rounds=1)


def test_settings_out_of_range_are_refused():
    with pytest.raises(UsageError, match="must be above 0"):
        make_method("class-means", {"logit_scale": -1})
