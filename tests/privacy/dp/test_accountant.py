"""Epsilon is opacus' own, a target epsilon is met, and noise is normal and comes from its key alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unseen.errors import UnseenError, UsageError
from unseen.privacy.dp.accountant import Steps, compute_epsilon, default_delta, find_noise
from unseen.privacy.dp.client_level import clip_to_norm, split_noise, update_clip_norm
from unseen.privacy.dp.dp_settings import DPSettings, resolve_noise
from unseen.privacy.dp.noise import NoiseStream, noise_key


@pytest.mark.parametrize(("rate", "steps", "noise"), [(1.0, 10, 1.0), (0.1, 40, 0.8), (0.064, 500, 1.3)])
def test_epsilon_is_that_of_opacus(rate, steps, noise):
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    for _ in range(steps):
        theirs.step(noise_multiplier=noise, sample_rate=rate)
    assert compute_epsilon([Steps(rate, steps)], noise=noise, delta=1e-5) == theirs.get_epsilon(delta=1e-5)


def test_steps_of_different_rates_add_up():
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    for rate in (0.1, 0.2):
        for _ in range(7):
            theirs.step(noise_multiplier=1.1, sample_rate=rate)
    ours = compute_epsilon([Steps(0.1, 7), Steps(0.2, 7), Steps(0.5, 0)], noise=1.1, delta=1e-6)
    assert ours == theirs.get_epsilon(delta=1e-6)


@pytest.mark.parametrize("target", [0.5, 3.0, 10.0])
def test_noise_is_found_for_an_epsilon(target):
    steps = [Steps(0.1, 100), Steps(1.0, 1)]
    found = resolve_noise(DPSettings(epsilon=target), units=1000, worst=steps)
    spent = [compute_epsilon([one], noise=found.multiplier, delta=found.tolerated) for one in steps]
    assert 0.99 * target < max(spent) <= target
    assert resolve_noise(found, units=1000, worst=steps) == found


def test_what_cannot_be_kept_is_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"would spend epsilon .* more than 1"):
        resolve_noise(DPSettings(epsilon=1.0, noise=0.5), units=9, worst=[Steps(1.0, 10)])
    with pytest.raises(UsageError, match="no noise keeps 1000000 steps within epsilon 1e-05"):
        find_noise(1e-5, Steps(1.0, 1_000_000), delta=1e-12)
    for wrong in ({"clip": 0.0}, {"noise": -1.0}, {"epsilon": 0.0}, {"delta": 1.0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            DPSettings(**wrong)
    monkeypatch.setitem(__import__("sys").modules, "opacus", None)
    with pytest.raises(UnseenError, match=r"needs opacus.*unseen\[dp\]"):
        compute_epsilon([Steps(1.0, 1)], noise=1.0, delta=1e-5)


def test_delta_is_below_one_in_the_number_of_units():
    assert default_delta(5) == default_delta(1000) == 1e-5
    assert default_delta(10**6) == pytest.approx(10**-6.6)


def test_noise_is_standard_normal_and_independent():
    stream = NoiseStream(b"key", "test", 1)
    first, second = stream.normal(100_001), stream.normal(100_001)
    for drawn in (first, second):
        assert stats.kstest(drawn, "norm").pvalue > 0.001
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(100_000)
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 4 / np.sqrt(100_000)
    assert stats.kstest(stream.uniform(100_000), "uniform").pvalue > 0.001


def test_drawing_is_independent_with_its_rate():
    stream = NoiseStream(b"key", "draw")
    sizes = np.array([len(stream.sample(50, 0.3)) for _ in range(4000)])
    assert abs(sizes.mean() - 15) < 4 * np.sqrt(50 * 0.3 * 0.7 / 4000)
    assert sizes.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.1)
    assert stream.sample(7, 1.0).tolist() == list(range(7))


def test_numbers_depend_on_key_and_name_alone():
    def numbers(*name, key=b"key"):
        return NoiseStream(key, *name).normal(8).tolist()

    assert numbers("a", 1) == numbers("a", 1)
    others = [numbers("a", 2), numbers("b", 1), numbers("a", "1"), numbers("a", 1, key=b"yek")]
    assert all(numbers("a", 1) != other for other in others)


def test_a_secret_key_is_drawn_once_and_kept():
    here, there = {}, {}
    key = noise_key("secret", seed=0, state=here)
    assert key == noise_key("secret", seed=1, state=here) != noise_key("secret", seed=0, state=there)
    assert noise_key("run", seed=3, state=(nothing := {})) == noise_key("run", seed=3, state={}) != key
    assert not nothing and noise_key("run", seed=4, state={}) != noise_key("run", seed=3, state={})


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_clipping_keeps_the_direction_and_the_bound(values, bound):
    vector = torch.tensor(values, dtype=torch.float64)
    found = clip_to_norm(vector, bound)
    assert found.vector.norm() <= bound * (1 + 1e-12)
    assert found.within == bool(vector.norm() <= bound)
    if found.within:
        assert torch.equal(found.vector, vector)
    else:
        torch.testing.assert_close(found.vector / found.vector.norm(), vector / vector.norm())


@given(st.floats(0.1, 10), st.floats(0.01, 0.99))
def test_both_parts_together_spend_the_whole(noise, share):
    parts = split_noise(noise, share=share)
    assert 1 / noise**2 == pytest.approx(1 / parts.updates**2 + 1 / (2 * parts.counts) ** 2)
    assert split_noise(noise, share=0).updates == noise


def test_the_bound_settles_at_the_quantile():
    norms, bound = np.linspace(1, 9, 801), 0.1
    for _ in range(400):
        bound = update_clip_norm(bound, float((norms <= bound).mean()), quantile=0.75, rate=0.2)
    assert bound == pytest.approx(np.quantile(norms, 0.75), rel=0.01)
