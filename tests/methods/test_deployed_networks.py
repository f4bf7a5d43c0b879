"""Methods that add to a network still deploy one that predict and export can serve."""

from __future__ import annotations

import pytest
import torch

from unseen.engine import Workspace
from unseen.serving import export_model, load_model
from unseen.serving.saved_model import ModelCard, save_model


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fedsr", {"bottleneck": True}), ("fedcmi", {}), ("moon", {"projection": 16}), ("stablefdg", {})],
)
def test_what_is_deployed_is_exported_and_predicts_alike(method, settings, make_experiment, go, tmp_path):
    experiment = make_experiment(method, settings=settings)
    checkpoint, _ = go(experiment)
    network, data = experiment.network, experiment.data
    card = ModelCard(
        model="mnist-cnn", method=method, settings=dict(vars(experiment.method.settings)), task=data.task,
        classes=data.classes, input_shape=data.input_shape, outputs=data.outputs, encoding=None, data="tiny",
        pixel_mean=network.pixel_mean, pixel_std=network.pixel_std, held_out=("held",), run_id="0",
    )  # fmt: skip
    workspace = Workspace(experiment)
    workspace.flat.load(checkpoint.weights)
    save_model(tmp_path / "model.safetensors", workspace.module.state_dict(), card)
    saved = load_model(tmp_path / "model.safetensors")
    pixels = torch.from_numpy(data.inputs[:12]).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = workspace.deployed.eval()(experiment.prepare.normalize(pixels))
    torch.testing.assert_close(saved.outputs(pixels), expected)
    assert expected.std() > 0.01
    exported = export_model(tmp_path / "model.safetensors")
    assert exported.facts["check"]["largest_difference"] <= 1e-5
    import onnxruntime

    session = onnxruntime.InferenceSession(exported.file, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": pixels.float().numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-5)
