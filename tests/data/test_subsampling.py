"""Balanced subsamples per domain: sizes, classes, and the same rows at a site as in one process."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.config import RunConfig
from unseen.data import DataRequest, from_arrays, load_data
from unseen.data.site_data import select_site
from unseen.data.sources import load_site
from unseen.data.subsampling import share_equally, subsample, subsample_site
from unseen.errors import UsageError


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 200), st.integers(0, 9))
def test_classes_are_as_equal_as_their_sizes_allow(counts, total, seed):
    counts, total = np.array(counts), min(total, sum(counts))
    taken = share_equally(counts, total, np.random.default_rng(seed))
    assert taken.sum() == total
    assert (taken <= counts).all()
    for one in range(len(counts)):
        assert taken[one] == counts[one] or taken[one] >= taken.max() - 1


@given(st.integers(1, 120), st.integers(0, 5))
def test_a_site_draws_the_same_samples_as_one_process(most, seed):
    random = np.random.default_rng(seed)
    places = random.choice(["a", "b", "c"], size=150, p=[0.6, 0.3, 0.1])
    values = np.arange(150, dtype=np.float32)[:, None]
    data = from_arrays(values, random.choice(list("xyz"), size=150), places, groups=np.arange(150) // 2)
    small = subsample(data, most)
    for domain in data.domains:
        rows, whole = small.indices(domain), data.indices(domain)
        assert len(rows) == min(most, len(whole))
        alone = subsample_site(select_site(data, domain, source="toy"), most)
        np.testing.assert_array_equal(alone.inputs, small.inputs[rows])
        np.testing.assert_array_equal(alone.split_group_of, small.split_group_of[rows])
        np.testing.assert_array_equal(alone.targets, small.targets[rows])
    assert set(small.inputs[:, 0]) <= set(values[:, 0])
    assert (small.fingerprint == data.fingerprint) == (len(small) == len(data))


def test_every_source_takes_the_number_of_samples_per_domain():
    data = load_data(DataRequest("rotated-digits", samples_per_domain=50))
    assert all(set(counts.values()) == {5} for counts in data.class_counts().values())
    assert "at most 50 samples per domain" in data.notes[-1]
    site = load_site("15", DataRequest("rotated-digits", samples_per_domain=50))
    np.testing.assert_array_equal(site.inputs, data.inputs[data.indices("15")])


def test_quantities_are_drawn_as_one_class():
    data = from_arrays(np.zeros((40, 2)), np.linspace(0, 1, 40), ["a", "b"] * 20)
    assert np.bincount(subsample(data, 7).domain_of).tolist() == [7, 7]


def test_no_sample_is_refused_and_all_samples_are_the_old_run():
    given = {"data": "digits", "hold_out": "usps"}
    with pytest.raises(UsageError, match="--samples-per-domain must be at least 1, not 0"):
        RunConfig.from_mapping({**given, "samples_per_domain": 0})
    assert RunConfig.from_mapping(given).identity() == "ccbf8beadf59"
    few = RunConfig.from_mapping({**given, "samples_per_domain": 10})
    assert few.identity() != RunConfig.from_mapping(given).identity()
