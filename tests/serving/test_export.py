"""Exported files say the same as the trained network, and how to use them."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from unseen.errors import UnseenError, UsageError
from unseen.models import InputSpec, build_model
from unseen.serving import export, export_model, load_model, predict, predict_folder
from unseen.serving import onnx_export as onnx_graph
from unseen.serving.onnx_export import example_inputs
from unseen.serving.saved_model import save_model


def run_onnx(file: Path, inputs: np.ndarray) -> dict[str, np.ndarray]:
    onnx_graph.require_onnx()
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (name,) = [entry.name for entry in session.get_inputs()]
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(None, {name: inputs}), strict=True))


@pytest.fixture(scope="module")
def exported(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> export.Exported:
    return export_model(digits_run, out=tmp_path_factory.mktemp("onnx") / "digits.onnx")


def test_onnx_agrees_on_image_files(exported, digits_run: Path, digit_files) -> None:
    folder, rows = digit_files
    names = sorted(rows)
    pixels = [np.asarray(Image.open(folder / name), dtype=np.float32)[None] for name in names]
    outputs = run_onnx(exported.file, np.stack(pixels))
    saved = load_model(digits_run)
    for item, probabilities in zip(
        predict_folder(saved, folder, top=10), outputs["probabilities"], strict=True
    ):
        told = dict(zip(saved.card.classes, probabilities.tolist(), strict=True))
        assert told == pytest.approx(dict(item.ranked), abs=1e-5)
    logits = torch.from_numpy(outputs["logits"])
    assert torch.allclose(logits.softmax(1), torch.from_numpy(outputs["probabilities"]), atol=1e-6)
    alone = run_onnx(exported.file, pixels[0][None])["probabilities"]
    assert alone == pytest.approx(outputs["probabilities"][:1], abs=1e-6)


def test_the_description_tells_how_to_use_the_file(exported) -> None:
    import onnx

    facts = json.loads(exported.description.read_text())
    assert exported.description.name == "digits.json"
    assert facts == exported.facts
    assert facts["input"]["shape"] == ["batch", 1, 16, 16]
    assert facts["input"]["normalisation"]["inside_the_model"]
    assert facts["classes"] == [str(digit) for digit in range(10)]
    assert (facts["task"], facts["held_out"], len(facts["run_id"])) == ("classification", ["75"], 12)
    assert facts["check"]["on"] == "12 held-out images"
    assert 0 <= facts["check"]["largest_difference"] <= 1e-5
    inside = {entry.key: entry.value for entry in onnx.load(exported.file).metadata_props}
    assert json.loads(inside["unseen"])["run_id"] == facts["run_id"]


def test_the_check_uses_the_images_of_the_report(digits_run: Path, digits, tmp_path: Path) -> None:
    saved = load_model(digits_run)
    images, what = example_inputs(saved, digits_run)
    held_out = {digits.inputs[row].tobytes() for row in digits.indices("75")}
    assert what == "12 held-out images"
    assert all(image.permute(1, 2, 0).numpy().tobytes() in held_out for image in images)
    invented, what = example_inputs(saved, tmp_path)
    assert what == "16 noise images"
    assert (invented.shape, invented.dtype) == ((16, 1, 16, 16), torch.uint8)


@pytest.mark.parametrize("model", ["mlp", "resnet18"])
def test_colour_models_carry_their_normalisation(model: str, digits_run: Path, tmp_path: Path) -> None:
    if model == "resnet18" and find_spec("timm") is None:
        pytest.skip("resnet18 needs timm")
    network = build_model(model, InputSpec((3, 32, 32), 10), seed=3).eval()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    card = replace(
        load_model(digits_run).card,
        model=model,
        input_shape=(3, 32, 32),
        pixel_mean=mean,
        pixel_std=std,
        settings={},
    )
    save_model(tmp_path / "colour.safetensors", network.state_dict(), card)
    exported = export_model(tmp_path / "colour.safetensors")
    assert exported.file == tmp_path / "colour.onnx"
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32)).astype(np.float32)
    scaled = (torch.from_numpy(pixels) / 255 - torch.tensor(mean).view(1, 3, 1, 1)) / torch.tensor(std).view(
        1, 3, 1, 1
    )
    with torch.inference_mode():
        expected = network(scaled).softmax(dim=1).numpy()
    assert run_onnx(exported.file, pixels)["probabilities"] == pytest.approx(expected, abs=1e-5)


def test_tables_export_with_their_features(price_run) -> None:
    run, new = price_run
    exported = export_model(run)
    entry = exported.facts["input"]
    assert entry["features"] == ["size", "kind=flat", "kind=house", "kind=other"]
    size = next(column for column in entry["columns"] if column["name"] == "size")
    row = np.array([[(130 - size["mean"]) / size["std"], 0, 1, 0]], dtype=np.float32)
    first = predict(load_model(run), new)[0].value
    assert run_onnx(exported.file, row)["values"][0, 0] == pytest.approx(first, rel=1e-5)
    assert exported.facts["classes"] == []


def test_bare_weights_have_the_names_of_the_network(digits_run: Path, tmp_path: Path) -> None:
    exported = export_model(digits_run, to="safetensors", out=tmp_path)
    assert exported.file == tmp_path / "model-network.safetensors"
    network = load_model(digits_run).network
    fresh = build_model("mnist-cnn", InputSpec((1, 16, 16), 10), seed=9)
    fresh.load_state_dict(load_file(exported.file))
    images = torch.rand(4, 1, 16, 16)
    assert torch.equal(fresh.eval()(images), network(images))
    assert not exported.facts["input"]["normalisation"]["inside_the_model"]
    assert exported.facts["tensors"]["head.weight"] == [10, 100]


def test_wrong_requests_are_refused_before_work(digits_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'onnx'"):
        export_model(digits_run, to="onx")
    with pytest.raises(UsageError, match=r"does not end in \.onnx"):
        export_model(digits_run, out=tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="is the model itself"):
        export_model(digits_run, to="safetensors", out=digits_run / "model.safetensors")
    with pytest.raises(UnseenError, match="no finished run"):
        export_model(tmp_path)


def test_a_file_that_differs_does_not_take_its_place(price_run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    before = tmp_path / "model.onnx"
    before.write_text("from before")
    with pytest.raises(UnseenError, match="differs from the trained one"):
        export_model(price_run[0], out=before)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    assert before.read_text() == "from before"


def test_a_missing_library_is_named_with_its_extra(price_run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(onnx_graph, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(UnseenError, match=r"onnxscript.*pip install 'unseen\[onnx\]'"):
        export_model(price_run[0], out=tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
