"""Pretrained weights by name: found below the data root, or asked for by their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from unseen.errors import UnseenError
from unseen.models.pretrained import IMAGENET, find_weights_file


def test_a_file_is_taken_as_it_is_and_nothing_means_random():
    assert find_weights_file("mine.safetensors", "resnet18", None) == Path("mine.safetensors")
    assert find_weights_file(None, "resnet18", None) is None


@pytest.mark.parametrize("name", ["resnet18_imagenet_features.safetensors", "resnet18_imagenet.pth"])
def test_imagenet_is_found_below_the_data_root(tmp_path, name):
    place = tmp_path / "weights" / name
    place.parent.mkdir()
    place.write_bytes(b"")
    assert find_weights_file(IMAGENET, "resnet18", tmp_path) == place
    with pytest.raises(UnseenError, match=r"resnet50.*weights/resnet50_imagenet.safetensors"):
        find_weights_file(IMAGENET, "resnet50", tmp_path)


def test_without_a_data_root_the_way_to_name_one_is_told():
    with pytest.raises(UnseenError, match="--data-root or UNSEEN_DATA"):
        find_weights_file(IMAGENET, "resnet18", None)
