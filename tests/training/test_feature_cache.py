"""Cached features equal those computed directly, and a damaged cache is never used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from unseen.data import DataSet, Samples, from_arrays
from unseen.data.transforms import Normalize
from unseen.models import InputSpec, build_model
from unseen.models.splitting import HEAD, LAST_STAGE, FrozenPart, split_network
from unseen.training import Preprocessor
from unseen.training.feature_cache import BLOCK, cache_features

COUNT = 2 * BLOCK + 10
SHAPE = (1, 16, 16)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data() -> DataSet:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (COUNT, 16, 16, 1), dtype=np.uint8)
    return from_arrays(images, np.arange(COUNT) % 3, np.where(np.arange(COUNT) < BLOCK, "a", "b"))


def frozen_part(part: str = LAST_STAGE) -> FrozenPart:
    network = build_model("mnist-cnn", InputSpec(SHAPE, 3), seed=0)
    return split_network(network, part, shape=SHAPE)[0]


def cache(data: DataSet, views: int = 3, augmentation: str = "shift", part: str = LAST_STAGE) -> DataSet:
    return cache_features(
        data,
        frozen_part(part),
        Preprocessor(normalize=Normalize(mean=(0.5,), std=(0.5,)), augmentation=augmentation),
        training=np.arange(BLOCK),
        evaluation=np.arange(BLOCK, COUNT),
        views=views,
    )[0]


@pytest.mark.parametrize("part", [HEAD, LAST_STAGE])
def test_first_view_is_what_the_frozen_part_computes(data: DataSet, part: str) -> None:
    rows = np.array([3, COUNT - 1, 70])
    cached = Samples(cache(data, part=part), rows).gather(torch.arange(3)).inputs
    prepare = Preprocessor(normalize=Normalize(mean=(0.5,), std=(0.5,)))
    direct = frozen_part(part)(prepare(Samples(data, rows).gather(torch.arange(3))).inputs)
    assert cached.dtype is torch.float32
    torch.testing.assert_close(cached, direct, rtol=2e-3, atol=1e-3)


def test_other_views_are_augmented_versions_of_training_samples(data: DataSet) -> None:
    cached = cache(data)
    samples = Samples(cached, np.arange(BLOCK))
    positions = torch.arange(BLOCK)
    clean, *others = (samples.gather(positions, torch.full((BLOCK,), view)).inputs for view in range(3))
    for other in others:
        assert not torch.allclose(other, clean)
    assert not torch.allclose(*others)
    assert not cached.inputs[BLOCK:, 1:].any(), "evaluation samples need no augmented version"


def test_batches_draw_among_the_views(data: DataSet) -> None:
    samples = Samples(cache(data), np.arange(BLOCK))
    generator = torch.Generator().manual_seed(0)
    batch = next(Preprocessor(normalize=Normalize()).batches(samples, iter([torch.arange(BLOCK)]), generator))
    positions = torch.arange(BLOCK)
    views = [samples.gather(positions, torch.full((BLOCK,), view)).inputs for view in range(3)]
    drawn = [
        {view for view in range(3) if torch.equal(own, views[view][row])}
        for row, own in enumerate(batch.inputs)
    ]
    assert all(len(found) == 1 for found in drawn)
    assert set.union(*drawn) == {0, 1, 2}


def test_second_run_computes_nothing(data: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache(data).inputs.copy()
    monkeypatch.setattr("unseen.training.feature_cache._Extractor.__call__", None)
    assert np.array_equal(cache(data).inputs, first)


def test_damaged_block_is_noticed_and_computed_again(data: DataSet, own_cache: Path) -> None:
    first = cache(data).inputs.copy()
    (file,) = [path for path in own_cache.glob("features-*.npy") if ".sums" not in path.name]
    content = bytearray(file.read_bytes())
    content[600] ^= 0x40
    file.write_bytes(content)
    assert np.array_equal(cache(data).inputs, first)


def test_damaged_file_is_replaced_and_readers_keep_theirs(data: DataSet, own_cache: Path) -> None:
    opened = cache(data).inputs
    first = opened.copy()
    (file,) = [path for path in own_cache.glob("features-*.npy") if ".sums" not in path.name]
    with file.open("r+b") as damaged:
        damaged.write(b"not a header")
    again = cache(data).inputs
    assert np.array_equal(again, first)
    assert np.array_equal(opened, first), "a truncated file would end the reader's process"


def test_other_weights_or_augmentation_use_another_file(data: DataSet, own_cache: Path) -> None:
    cache(data)
    cache(data, augmentation="none")
    cache(data, part=HEAD)
    names = {path.name for path in own_cache.glob("features-*.sums.npy")}
    assert len(names) == 3


def test_cache_that_cannot_be_written_is_kept_in_memory(
    data: DataSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = cache(data).inputs.copy()
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("UNSEEN_CACHE", str(blocked / "below"))
    assert np.array_equal(cache(data).inputs, expected)


def test_run_that_waits_for_another_says_so(data: DataSet, own_cache: Path) -> None:
    first = cache(data).inputs.copy()
    (lock,) = own_cache.glob("features-*.lock")
    held, said = FileLock(lock), []

    def hear(what: str, done: int, total: int) -> None:
        said.append(what)
        held.release()

    held.acquire()
    found, _ = cache_features(
        data,
        frozen_part(),
        Preprocessor(normalize=Normalize(mean=(0.5,), std=(0.5,)), augmentation="shift"),
        training=np.arange(BLOCK),
        evaluation=np.arange(BLOCK, COUNT),
        views=3,
        progress=hear,
    )
    assert said == ["waiting for features that another run computes"]
    assert np.array_equal(found.inputs, first)
