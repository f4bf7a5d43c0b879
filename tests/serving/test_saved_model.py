"""A model file says what it is; anything else is refused in one line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from unseen.errors import UnseenError
from unseen.serving import load_model


def refusal(path: Path) -> str:
    with pytest.raises(UnseenError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "nothing")
    assert "no finished run" in refusal(tmp_path)
    text = tmp_path / "text.safetensors"
    text.write_text("hello, this is no model at all")
    assert "is not a model written by unseen" in refusal(text)
    text.write_bytes(b"")
    assert "is not a model written by unseen" in refusal(text)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(2)}, foreign)
    assert "no description of their use" in refusal(foreign)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"colour": "red"}, "not a model written by unseen"), ({"outputs": 7}, "do not fit model 'mnist-cnn'")],
)
def test_cards_that_do_not_fit_are_refused(digits_run: Path, tmp_path: Path, change, text: str) -> None:
    with safe_open(digits_run / "model.safetensors", framework="pt") as opened:
        card = json.loads(opened.metadata()["unseen"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    save_file(tensors, tmp_path / "m.safetensors", {"unseen": json.dumps(card | change)})
    assert text in refusal(tmp_path / "m.safetensors")


def test_a_damaged_model_is_refused(digits_run: Path, tmp_path: Path) -> None:
    """R3: 200 flipped bytes changed 12 of 12 predictions, and nothing was said."""
    damaged = bytearray((digits_run / "model.safetensors").read_bytes())
    damaged[-5000:-4800] = bytes(byte ^ 0x10 for byte in damaged[-5000:-4800])
    (tmp_path / "m.safetensors").write_bytes(damaged)
    assert "checksum differs" in refusal(tmp_path / "m.safetensors")


def test_a_model_without_a_checksum_is_used_and_known_as_such(digits_run: Path, tmp_path: Path) -> None:
    with safe_open(digits_run / "model.safetensors", framework="pt") as opened:
        header = {"unseen": opened.metadata()["unseen"]}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    save_file(tensors, tmp_path / "m.safetensors", header)
    assert load_model(digits_run).checked
    assert not load_model(tmp_path / "m.safetensors").checked
