from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.data import DataSet, Samples
from unseen.data.transforms import Normalize
from unseen.training import Preprocessor, batch_positions
from unseen.training.preprocessing import count_batches


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 200), st.integers(1, 70))
def test_an_epoch_shows_every_sample_once(count, size):
    parts = list(batch_positions(count, size, generator=_generator()))
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    assert all(len(part) <= size + 1 for part in parts)
    if count > 1 and size > 1:
        assert all(len(part) > 1 for part in parts), "batch norm cannot take a batch of one"


@given(st.integers(2, 50), st.integers(1, 20), st.integers(1, 30))
def test_a_fixed_number_of_batches_is_kept(count, size, batches):
    parts = list(batch_positions(count, size, generator=_generator(), batches=batches))
    assert [len(part) for part in parts] == [size] * batches
    counts = torch.bincount(torch.cat(parts), minlength=count)
    assert int(counts.max() - counts.min()) <= 1, "no sample is seen twice more often than another"


def test_order_follows_the_generator():
    one, again, other = (torch.cat(list(batch_positions(50, 8, generator=_generator(s)))) for s in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("augmentation", ["none", "standard"])
@given(size=st.integers(1, 80), batches=st.none() | st.integers(1, 5), at_once=st.integers(0, 7))
def test_batches_prepared_together_are_those_prepared_one_by_one(augmentation, size, batches, at_once):
    count, draws = 90, np.random.default_rng(0)
    data = DataSet(
        name="squares",
        task="classification",
        inputs=draws.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8),
        targets=draws.integers(0, 2, count),
        domain_of=np.zeros(count, dtype=np.int64),
        domains=("one",),
        classes=("a", "b"),
    )
    prepare = Preprocessor(Normalize((0.5,), (0.25,)), augmentation)
    samples = Samples(data, np.arange(count))
    positions = list(batch_positions(count, size, generator=_generator(), batches=batches))
    together = list(prepare.batches(samples, iter(positions), _generator(1), at_once=at_once))
    draw = _generator(1)
    assert len(together) == len(positions)
    for place, batch in zip(positions, together, strict=True):
        for ours, alone in zip(batch, prepare(samples.gather(place), draw), strict=True):
            assert torch.equal(ours, alone)


@given(count=st.integers(1, 60), batch_size=st.integers(1, 20), batches=st.none() | st.integers(1, 5))
def test_batches_are_counted_as_they_are_drawn(count, batch_size, batches):
    drawn = list(batch_positions(count, batch_size, generator=_generator(), batches=batches))
    assert count_batches(count, batch_size, batches) == len(drawn)
