"""Two origins, one view: as if all samples lay in one data set."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from unseen.data import Batch, DataSet, JoinedSamples, Samples


def numbered(task: str) -> DataSet:
    """30 distinct samples: images to classify, or rows of a table with a value each."""
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 5, 3), dtype=np.uint8)
    rows = np.arange(60, dtype=np.float32).reshape(30, 2)
    pictures = task == "classification"
    return DataSet(
        name="numbered",
        task=task,
        inputs=images if pictures else rows,
        targets=np.arange(30) % 4 if pictures else rows[:, 0] / 7,
        domain_of=np.arange(30) // 15,
        domains=("a", "b"),
        classes=("w", "x", "y", "z") if pictures else (),
    )


@pytest.mark.parametrize("task", ["classification", "regression"])
@given(st.lists(st.integers(0, 29), max_size=12))
def test_gathers_like_one_data_set(task, wanted):
    data = numbered(task)
    own, others = Samples(data, np.arange(18)), Samples(data, np.arange(18, 30))
    joined = JoinedSamples(own, others.gather(torch.arange(12)))
    whole = Samples(data, np.arange(30))
    positions = torch.tensor(wanted, dtype=torch.int64)
    for ours, theirs in zip(joined.gather(positions), whole.gather(positions), strict=True):
        assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
    assert len(joined) == 30
    assert torch.equal(joined.targets, whole.targets) and torch.equal(joined.domains, whole.domains)
    assert joined.task_type is data.task_type
    assert (joined.classes, joined.domain_names) == (data.classes, data.domains)


def test_images_keep_their_memory_layout_however_they_arrived():
    data = numbered("classification")
    given = Samples(data, np.arange(5)).gather(torch.arange(5))
    arrived = Batch(given.inputs.contiguous(), given.targets, given.domains)
    batch = JoinedSamples(Samples(data, np.arange(5, 30)), arrived).gather(torch.tensor([0, 26, 3]))
    assert batch.inputs.dtype == torch.uint8
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)


def test_the_others_can_be_none():
    data = numbered("classification")
    own = Samples(data, np.arange(30))
    nothing = Samples(data, np.arange(0)).gather(torch.arange(0))
    batch = JoinedSamples(own, nothing).gather(torch.tensor([7, 2]))
    assert torch.equal(batch.inputs, own.gather(torch.tensor([7, 2])).inputs)
