"""What COPA deploys is all classifiers together: evaluation, predictions and exports say the same."""

from __future__ import annotations

import csv
import io
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from unseen.cli.main import main
from unseen.config import RunConfig
from unseen.data import DataRequest, load_data
from unseen.runner.run import run
from unseen.serving import export_model, load_model
from unseen.serving import onnx_export as onnx_graph


@pytest.fixture(scope="module", params=["probabilities", "logits"])
def copa_run(request, tmp_path_factory):
    config = RunConfig(
        data="rotated-digits", hold_out=("75",), method="copa", rounds=2, lr=0.05, batch_size=16, workers=1,
        settings={"ensemble": request.param},
    )  # fmt: skip
    return run(config, out=tmp_path_factory.mktemp("copa") / "run").folder


@pytest.fixture(scope="module")
def digits():
    return load_data(DataRequest("rotated-digits"))


def by_hand(folder, images):
    """Probabilities from the tensors in the file alone: extractor, then every classifier, then their mean."""
    tensors = load_file(folder / "model.safetensors")
    saved = load_model(folder)
    weights = [tensors[f"head.of_domain.{number}.weight"] for number in range(5)]
    biases = [tensors[f"head.of_domain.{number}.bias"] for number in range(5)]
    assert len({tuple(weight.flatten().tolist()) for weight in weights}) == 5
    with torch.no_grad():
        features = saved.network.features(saved.card.normalize(images))
        logits = [features @ weight.T + bias for weight, bias in zip(weights, biases, strict=True)]
    if saved.card.settings["ensemble"] == "logits":
        return (sum(logits) / 5).softmax(1)
    return sum(each.softmax(1) for each in logits) / 5


def test_a_saved_model_has_every_classifier_and_answers_for_all(copa_run, digits):
    saved = load_model(copa_run)
    assert saved.card.sources == ("0", "15", "30", "45", "60")
    images = torch.from_numpy(digits.inputs[digits.indices("75")]).permute(0, 3, 1, 2)
    answer = saved.outputs(images).softmax(1)
    torch.testing.assert_close(answer, by_hand(copa_run, images), rtol=1e-4, atol=1e-5)
    accuracy = (answer.argmax(1).numpy() == digits.targets[digits.indices("75")]).mean()
    result = json.loads((copa_run / "result.json").read_text())
    assert accuracy == pytest.approx(result["metrics"]["target"]["accuracy"])


def test_onnx_has_the_ensemble_inside(copa_run, digits, tmp_path):
    onnx_graph.require_onnx()
    import onnxruntime

    file = export_model(copa_run, out=tmp_path / "copa.onnx").file
    images = digits.inputs[digits.indices("75")[:11]].transpose(0, 3, 1, 2)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    chances = session.run(["probabilities"], {"images": images.astype(np.float32)})[0]
    expected = by_hand(copa_run, torch.from_numpy(images))
    assert chances == pytest.approx(expected.numpy(), abs=1e-5)


def test_the_commands_serve_it(copa_run, digits, tmp_path, monkeypatch, capsys):
    rows = digits.indices("75")[:6]
    for row in rows:
        Image.fromarray(digits.inputs[row, ..., 0]).save(tmp_path / f"{row:05}.png")
    monkeypatch.setattr(
        sys, "argv", ["unseen", "predict", str(copa_run), str(tmp_path), "--all-probabilities"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    told = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    expected = by_hand(copa_run, torch.from_numpy(digits.inputs[rows]).permute(0, 3, 1, 2))
    likeliest = [digits.classes[number] for number in expected.argmax(1).tolist()]
    assert [line["class"] for line in told] == likeliest
    monkeypatch.setattr(
        sys, "argv", ["unseen", "export", str(copa_run), "--to", "safetensors", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    exported = load_file(next(tmp_path.glob("*.safetensors")))
    assert {f"head.of_domain.{number}.weight" for number in range(5)} <= set(exported)
