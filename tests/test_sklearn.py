"""Estimators of scikit-learn's manner: its own checks, and what domains, frames and pickles add."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import unseen
from unseen.sklearn import DomainGeneralizationClassifier, DomainGeneralizationRegressor

QUICK = {"rounds": 2, "local_epochs": 2, "lr": 0.1}


@parametrize_with_checks(
    [
        DomainGeneralizationClassifier(rounds=2, local_epochs=10, lr=0.1),
        DomainGeneralizationRegressor(rounds=2, local_epochs=10),
    ]
)
def test_checks_of_scikit_learn(estimator, check):
    """All of them apply, and none is expected to fail."""
    check(estimator)


def rows(*, seed=0, domains=("a", "b", "c"), per_domain=60):
    """Two classes along one column; each domain shifts another column."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 2, per_domain * len(domains))
    places = np.repeat(domains, per_domain)
    shift = np.unique(places, return_inverse=True)[1]
    x = np.column_stack([2.0 * y + generator.normal(size=len(y)) / 2, shift + generator.normal(size=len(y))])
    return x, np.array(["no", "yes"])[y], places


def test_domains_are_clients_and_change_the_training():
    x, y, places = rows()
    found = DomainGeneralizationClassifier(**QUICK).fit(x, y, domains=places)
    pooled = DomainGeneralizationClassifier(**QUICK).fit(x, y)
    assert list(found.domains_) == ["a", "b", "c"] and list(found.classes_) == ["no", "yes"]
    assert found.model_.card.sources == ("a", "b", "c")
    assert found.score(x, y) > 0.9
    assert not np.allclose(found.predict_proba(x), pooled.predict_proba(x))


def test_the_row_that_is_held_out_for_form_is_not_learned_from():
    x, y, places = rows()
    order = np.r_[1 : len(x), 0]
    kept = order[np.argsort(places[order], kind="stable")]
    first = DomainGeneralizationClassifier(**QUICK).fit(x, y, places).model_.card.encoding
    other = DomainGeneralizationClassifier(**QUICK).fit(x[kept], y[kept], places[kept]).model_.card.encoding
    assert np.allclose(first["means"], other["means"]) and np.allclose(first["means"], x.mean(axis=0))


def test_a_domain_may_have_any_name_and_few_rows():
    x, y, places = rows(domains=("nothing held out", "b"), per_domain=4)
    found = DomainGeneralizationClassifier(**QUICK).fit(x, y, domains=places)
    assert set(found.domains_) == {"nothing held out", "b"}


def test_any_method_and_option_and_its_errors():
    x, y, places = rows(per_domain=20)
    options = {"momentum": 0.5, "schedule": "cosine"}
    estimator = DomainGeneralizationClassifier("fedprox", settings={"mu": 0.5}, options=options, **QUICK)
    assert estimator.fit(x, y, domains=places).model_.card.settings["mu"] == 0.5
    with pytest.raises(unseen.errors.UsageError, match="unknown method 'fedprx'"):
        estimator.set_params(method="fedprx").fit(x, y, domains=places)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(estimator).fit(x, y, domains=places[:-1])


def test_seeds_are_repeated_and_leave_global_generators_alone():
    x, y, places = rows(per_domain=20)
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    one, two, three = (
        DomainGeneralizationClassifier(random_state=seed, **QUICK).fit(x, y, places).predict_proba(x)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two) and not np.array_equal(one, three)
    assert np.array_equal(before, np.random.get_state()[1])


def test_validation_selects_a_round():
    x, y, places = rows()
    estimator = DomainGeneralizationClassifier(validation=0.2, **QUICK).fit(x, y, domains=places)
    assert estimator.model_.calibration is not None, "the validation part also calibrates"


def test_pipelines_searches_and_leaving_domains_out():
    x, y, places = rows(per_domain=30)
    pipe = make_pipeline(StandardScaler(), DomainGeneralizationClassifier(**QUICK))
    name = "domaingeneralizationclassifier"
    assert pipe.fit(x, y, **{f"{name}__domains": places}).score(x, y) > 0.9
    search = GridSearchCV(DomainGeneralizationClassifier(**QUICK), {"method": ["fedavg", "deepall"]}, cv=2)
    assert search.fit(x, y, domains=places).best_score_ > 0.9
    held_out = cross_val_score(
        DomainGeneralizationClassifier(**QUICK),
        *(x, y),
        groups=places,
        cv=LeaveOneGroupOut(),
        params={"domains": places},
    )
    assert len(held_out) == 3 and min(held_out) > 0.8


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_with_texts_and_gaps(library):
    frames = pytest.importorskip(library)
    x, y, places = rows()
    colour = np.where(y == "yes", "red", "blue").astype(object)
    colour[::7] = None
    number = x[:, 1].copy()
    number[::5] = np.nan
    frame = frames.DataFrame({"colour": colour.tolist(), "number": number})
    estimator = DomainGeneralizationClassifier(**QUICK).fit(frame, y, domains=places)
    assert list(estimator.feature_names_in_) == ["colour", "number"] and estimator.n_features_in_ == 2
    assert estimator.model_.card.encoding["columns"][0]["levels"] == ["blue", "red"]
    assert estimator.score(frame, y) > 0.85
    unknown = frames.DataFrame({"colour": ["green"], "number": [0.0]})
    assert estimator.predict_proba(unknown).sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="feature names"):
        estimator.predict(unknown.rename({"number": "other"}) if library == "polars"
                          else unknown.rename(columns={"number": "other"}))  # fmt: skip


def test_weights_are_inside_a_pickle():
    x, _, places = rows(per_domain=20)
    estimator = DomainGeneralizationRegressor(**QUICK).fit(x, 100.0 + x[:, 0], domains=places)
    assert 99 < estimator.predict(x).mean() < 104
    copied = pickle.loads(pickle.dumps(estimator))
    assert np.array_equal(copied.predict(x), estimator.predict(x))
