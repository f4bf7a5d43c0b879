"""Data sets of torch and of Hugging Face as data sets with domains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

import unseen
from made_sets import CLASSES, DOMAINS, png, rows
from unseen.errors import UsageError


class Pictures(torch.utils.data.Dataset[Any]):
    """One domain's images, as torchvision's ImageFolder gives them."""

    def __init__(self, domain: str, *, as_tensor: bool = False) -> None:
        self.classes = list(CLASSES)
        self.rows = [row for row in rows() if row["domain"] == domain]
        self.as_tensor = as_tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        pixels = self.rows[at]["pixels"]
        image = torch.from_numpy(pixels).permute(2, 0, 1) / 255 if self.as_tensor else Image.fromarray(pixels)
        return image, self.classes.index(self.rows[at]["label"])


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_torch_data_set_per_domain(as_tensor: bool) -> None:
    data = unseen.from_torch({name: Pictures(name, as_tensor=as_tensor) for name in DOMAINS}, image_size=20)
    np.testing.assert_array_equal(data.inputs, np.stack([row["pixels"] for row in rows()]))
    assert (data.domains, data.classes) == (DOMAINS, CLASSES)


def test_vectors_with_domains_and_groups() -> None:
    inputs = torch.arange(24.0).reshape(8, 3)
    data = unseen.from_torch(
        TensorDataset(inputs, torch.arange(8) % 2), list("aabbccdd"), groups=list("ppqqrrss")
    )
    np.testing.assert_array_equal(data.inputs, inputs.numpy())
    assert data.domains == ("a", "b", "c", "d") and data.repeats_groups
    assert unseen.from_torch([(torch.ones(2), 0, "x"), (torch.ones(2), 1, "y")]).domains == ("x", "y")


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([(torch.randn(3, 8, 8), 0)], {"domains": ["a"]}, "leave Normalize out"),
        ([(torch.zeros(3, 8, 8), 0), (torch.zeros(3, 9, 9), 0)], {"domains": ["a", "b"]}, "give image_size"),
        ([(torch.zeros(3, 8, 8), 0)], {}, "no domains"),
        ([(torch.zeros(3, 8, 8), 0)], {"domains": []}, "one entry per sample"),
        ([torch.zeros(3, 8, 8)], {"domains": ["a"]}, r"expected \(input, target\)"),
        ([], {}, "no samples"),
        ([(torch.zeros(4, 8, 8), 0)], {"domains": ["a"]}, "1 or 3 channels"),
    ],
)
def test_what_cannot_be_used_is_said(samples: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        unseen.from_torch(samples, **options)


def test_classes_that_are_numbered_differently_are_refused() -> None:
    other = Pictures("photo")
    other.classes = other.classes[::-1]
    with pytest.raises(UsageError, match="must mean the same"):
        unseen.from_torch({"art": Pictures("art"), "photo": other})


def test_a_data_set_of_hugging_face_trains(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "domain": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list(CLASSES)),
        }
    )
    listed = [
        {"image": {"bytes": png(row["pixels"]), "path": None}, "domain": row["domain"], "label": row["label"]}
        for row in rows()
    ]
    whole = datasets.Dataset.from_list(listed, features=features)
    data = unseen.from_datasets(whole, image_size=20)
    np.testing.assert_array_equal(data.inputs, np.stack([row["pixels"] for row in rows()]))
    assert (data.domains, data.classes) == (DOMAINS, CLASSES)
    halves = datasets.DatasetDict({"train": whole.select(range(20)), "test": whole.select(range(20, 36))})
    assert unseen.from_datasets(halves, image_size=20).fingerprint == data.fingerprint
    result = unseen.train(
        data,
        hold_out="sketch",
        effort="none",
        rounds=1,
        model="mnist-cnn",
        batch_size=4,
        out=tmp_path / "run",
    )
    assert result.metrics["target"]["accuracy"] >= 0
    with pytest.raises(UsageError, match="'style'"):
        unseen.from_datasets(whole, domain_column="style")
    with pytest.raises(UsageError, match="expected images"):
        unseen.from_datasets(whole, image_column="domain", domain_column="label")
