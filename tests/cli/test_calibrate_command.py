"""`unseen calibrate` as users meet it: table, model file, JSON, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny_data import tiny_data
from unseen.runner.run import train
from unseen.serving import load_model


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    place, data = tmp_path_factory.mktemp("runs"), tiny_data(per_class=16)
    options = {"rounds": 1, "batch_size": 8, "validation": 0.3, "model": "mnist-cnn", "workers": 1}
    return {
        name: train(data, hold_out=("held", *name), out=place / f"run-{name}", **options).folder
        for name in ("", "a", "b")
    }


def test_a_copy_of_the_model_is_written_and_used(unseen, runs):
    before = (runs[""] / "model.safetensors").read_bytes()
    answer = unseen("calibrate", runs[""], runs["a"], runs["b"])
    assert answer.code == 0 and "left-out source" in answer.out and "calibrated.safetensors" in answer.out
    calibrated = load_model("calibrated.safetensors")
    assert calibrated.checked and calibrated.card.calibration["conformal"]["default"]["rule"] == "unseen"
    assert (runs[""] / "model.safetensors").read_bytes() == before
    exported = unseen("export", "calibrated.safetensors", "--to", "onnx", "--out", "model.onnx")
    assert exported.code == 0 and '"rule": "unseen"' in Path("model.json").read_text()


def test_json_is_all_there_is_on_standard_output(unseen, runs):
    found = json.loads(unseen("calibrate", runs[""], runs["a"], runs["b"], "--out", "new/m.st", "--json").out)
    assert found["model"] == "new/m.st" and Path("new/m.st").exists()
    assert [each["domain"] for each in found["left_out"]] == ["a", "b"]
    assert all(0 <= each["coverage"] <= 1 for each in found["left_out"])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("", "a"), 2, "at least 2 different sources"),
        (("", "", "a"), 2, "left out none of the model's sources"),
        (("a", "", "b"), 2, "which the model did not"),
        (("", "a", "b", "--out", "MODEL"), 2, "is the model itself"),
        (("nowhere", "a", "b"), 1, "no such file or folder"),
    ],
)
def test_errors_are_one_line(unseen, runs, words, code, text):
    named = {**runs, "MODEL": runs[""] / "model.safetensors"}
    answer = unseen("calibrate", *(named.get(word, word) for word in words))
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err and len(answer.err.strip().splitlines()) == 1
