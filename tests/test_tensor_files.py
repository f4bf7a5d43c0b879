"""Files of tensors: every bit counts, and the same content gives the same file."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.tensor_files import DamagedFileError, load_tensors, save_tensors

TENSORS = {
    "a": torch.linspace(-1, 1, 5),
    "half": torch.ones(2, 3, dtype=torch.bfloat16),
    "flag": torch.tensor([True, False]),
    "one": torch.tensor(3),
    "none": torch.empty(0),
}
TEXTS = {"card": '{"name": "caf\u00e9 \\n"}', "z": "1", "b": "\x7f\x01"}


def test_tensors_and_texts_come_back_with_types_and_shapes(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, TENSORS | {"view": TENSORS["a"][1:3], "same": TENSORS["a"]}, TEXTS)
    found = load_tensors(path)
    assert found.checked and found.metadata == TEXTS
    assert torch.equal(found.tensors["view"], TENSORS["a"][1:3])
    for name, tensor in TENSORS.items():
        assert torch.equal(found.tensors[name], tensor) and found.tensors[name].dtype == tensor.dtype


def test_the_same_content_gives_the_same_bytes(tmp_path):
    """safetensors writes several texts in a random order."""
    for number in range(8):
        save_tensors(tmp_path / f"{number}.safetensors", TENSORS, TEXTS)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "x.safetensors"
    save_tensors(path, TENSORS, TEXTS)
    return path, path.read_bytes()


@given(place=st.integers(0, 10**6), change=st.integers(1, 255))
def test_any_changed_byte_is_noticed_or_of_no_effect(content, place: int, change: int):
    """R3: header, names, types, shapes, values and texts."""
    path, whole = content
    damaged = bytearray(whole)
    damaged[place % len(whole)] ^= change
    path.write_bytes(damaged)
    try:
        found = load_tensors(path)
    except DamagedFileError as error:
        assert "\n" not in str(error)
        return
    assert TEXTS.items() <= found.metadata.items() and sorted(found.tensors) == sorted(TENSORS)
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in TENSORS.items())
