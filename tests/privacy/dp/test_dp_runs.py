"""Whole runs under differential privacy: the same bits on every engine, epsilon in result and page."""

from __future__ import annotations

import json
import tomllib

import pytest
from safetensors.torch import load_file

import unseen
from unseen.errors import UsageError
from unseen.runner.run import run
from unseen.runs.folder import resume_config

OPTIONS = {"rounds": 1, "batches_per_epoch": 2, "batch_size": 4, "hold_out": "held"}
PROTECTIONS = {
    "dp-clients": {"epsilon": 30.0, "adaptive": True, "clip": 0.05, "noise_seed": "run"},
    "dp-samples": {"noise": 1.0, "noise_seed": "run"},
}


@pytest.mark.parametrize("protect", PROTECTIONS)
def test_runs_state_their_epsilon_and_have_the_same_bits_on_every_engine(protect, make_tiny_data, tmp_path):
    data, options = (
        make_tiny_data(),
        {"protect": protect, "protect_settings": PROTECTIONS[protect], **OPTIONS},
    )
    one, two = (
        unseen.train(data, out=tmp_path / str(workers), workers=workers, **options) for workers in (1, 2)
    )
    weights = [load_file(made.folder / "model.safetensors") for made in (one, two)]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())

    result = json.loads((one.folder / "result.json").read_text())
    told, config = result["protection"], tomllib.loads((one.folder / "config.toml").read_text())
    settings = config["protect_settings"]
    assert told == two.values["protection"] and told["name"] == protect
    assert told["epsilon"] > 0 and told["delta"] == settings["delta"] == 1e-5
    assert told["noise_multiplier"] == settings["noise"]
    assert protect == "dp-samples" or told["epsilon"] <= settings["epsilon"] == 30
    page = (one.folder / "report.html").read_text()
    assert "epsilon" in page and "Gaussian noise" in page

    named = run(resume_config(one.folder, {}), out=one.folder, resume=True, data=data)
    given = unseen.train(data, out=two.folder, resume=True, workers=1, **options)
    assert named.values["protection"] == given.values["protection"] == told


def test_batch_norm_is_refused_before_the_run(make_tiny_data, tmp_path):
    with pytest.raises(UsageError, match="running statistics"):
        unseen.train(make_tiny_data(), model="resnet18", protect="dp-samples", out=tmp_path / "x", **OPTIONS)
    assert not (tmp_path / "x").exists()
