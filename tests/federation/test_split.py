import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.data import DataSet
from unseen.errors import UsageError
from unseen.federation import Split, SplitFractions, split_domain
from unseen.federation.split import apportion


def one_domain(class_sizes: list[int], *, task: str = "classification") -> DataSet:
    targets = np.repeat(np.arange(len(class_sizes)), class_sizes)
    targets = np.random.default_rng(1).permutation(targets)
    return DataSet(
        name="toy",
        task=task,
        inputs=np.zeros((len(targets), 1), dtype=np.float32),
        targets=targets if task == "classification" else targets.astype(np.float32),
        domain_of=np.zeros(len(targets), dtype=np.int64),
        domains=("a",),
        classes=tuple(f"c{i}" for i in range(len(class_sizes))) if task == "classification" else (),
    )


class_sizes = st.lists(st.integers(0, 60), min_size=2, max_size=8).filter(lambda sizes: sum(sizes) > 0)
fractions = st.builds(SplitFractions, st.floats(0, 0.49), st.floats(0, 0.49))


@given(class_sizes, fractions, st.integers(0, 99))
def test_every_class_is_split_in_proportion_and_can_be_learnt(sizes, fractions, seed):
    data = one_domain(sizes)
    labels = split_domain(data, "a", fractions, seed=seed)
    for number, size in enumerate(sizes):
        of_class = np.bincount(labels[data.targets == number], minlength=3)
        assert of_class.sum() == size
        assert size == 0 or of_class[Split.TRAIN] >= 1
        assert of_class[Split.VALIDATION] <= np.ceil(size * fractions.validation + 0.5)
        assert of_class[Split.TEST] <= np.ceil(size * fractions.test + 0.5)
    for split, fraction in ((Split.VALIDATION, fractions.validation), (Split.TEST, fractions.test)):
        assert abs((labels == split).sum() - fraction * sum(sizes)) <= len(sizes)


def test_fractions_of_the_whole_domain_are_exact_when_classes_allow():
    labels = split_domain(one_domain([37] * 10), "a", SplitFractions(0.1, 0.2), seed=0)
    assert np.bincount(labels).tolist() == [259, 37, 74]


def test_no_fraction_no_sample():
    assert not split_domain(one_domain([5, 5]), "a", SplitFractions(0, 0), seed=0).any()


def test_regression_is_shuffled_as_a_whole():
    data = one_domain([50, 50], task="regression")
    labels = split_domain(data, "a", SplitFractions(0.1, 0.2), seed=0)
    assert np.bincount(labels).tolist() == [70, 10, 20]
    assert not (np.diff(labels) >= 0).all()


def test_the_same_name_draws_the_same_and_another_seed_another_split():
    data = one_domain([40, 40])
    first, again, other = (split_domain(data, "a", SplitFractions(), seed=seed) for seed in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize(
    ("validation", "test"), [(-0.1, 0.1), (0.1, 1.0), (0.5, 0.5), (float("nan"), 0.1), (0.7, 0.6)]
)
def test_impossible_fractions_are_refused(validation, test):
    with pytest.raises(UsageError, match="fraction"):
        SplitFractions(validation, test)


@given(
    st.integers(0, 200),
    st.lists(st.floats(0.01, 1), min_size=1, max_size=20),
    st.integers(0, 99),
)
def test_apportion_loses_nothing_and_stays_within_one_of_the_quota(total, weights, seed):
    shares = np.array(weights) / sum(weights)
    counts = apportion(total, shares, generator=np.random.default_rng(seed))
    assert counts.sum() == total
    assert (np.abs(counts - total * shares) < 1 + 1e-6).all()


@given(st.integers(0, 40), st.lists(st.floats(0.01, 1), min_size=2, max_size=20), st.data())
def test_apportion_keeps_its_promises(extra, weights, data):
    shares = np.array(weights) / sum(weights)
    promised = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(shares), max_size=len(shares))))
    total = int(promised.sum()) + extra
    counts = apportion(total, shares, generator=np.random.default_rng(0), at_least=promised)
    assert counts.sum() == total
    assert (counts >= promised).all()
