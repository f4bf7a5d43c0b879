from __future__ import annotations

import numpy as np
import pytest

import unseen
from unseen.data import from_arrays
from unseen.errors import UsageError


def test_images_classes_and_domains():
    data = from_arrays(np.zeros((4, 5, 6), np.uint8), ["b", "a", "b", "a"], ["x", "x", "y", "y"])
    assert data.input_shape == (1, 5, 6) and data.task == "classification"
    assert data.classes == ("a", "b") and data.targets.tolist() == [1, 0, 1, 0]
    assert data.domains == ("x", "y") and data.domain_of.tolist() == [0, 0, 1, 1]


def test_rows_and_values():
    data = from_arrays(np.ones((3, 2)), np.array([0.5, 1.0, 2.0]), [1, 2, 2])
    assert data.task == "regression" and data.inputs.dtype == np.float32 and data.domains == ("1", "2")


@pytest.mark.parametrize(
    ("inputs", "targets", "words"),
    [
        (np.zeros((3, 2)), [1, 2], "the same length"),
        (np.zeros((2, 3, 4)), [1, 2], "neither images"),
        (np.array([["a"], ["b"]]), [1, 2], "neither images"),
    ],
)
def test_unfit_arrays_are_refused(inputs, targets, words):
    with pytest.raises(UsageError, match=words):
        from_arrays(inputs, targets, ["x"] * len(targets))


def test_arrays_train_from_python(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.tile([0, 1], 60)
    images = (generator.integers(0, 100, (120, 12, 12)) + 120 * labels[:, None, None]).astype(np.uint8)
    data = from_arrays(images, labels, np.repeat(["a", "b", "c"], 40))
    options = {"hold_out": "c", "rounds": 4, "local_epochs": 4, "batch_size": 8, "lr": 0.05}
    result = unseen.train(data, out=tmp_path / "run", **options)
    assert result.metrics["target"]["accuracy"] > 0.9
    again = unseen.train(data, out=tmp_path / "run", resume=True, **options)
    assert again.metrics == result.metrics
