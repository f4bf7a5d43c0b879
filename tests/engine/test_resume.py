"""A run goes on whatever its method's settings are, also those that are None; never with jumbled weights."""

from __future__ import annotations

import pytest
import torch

from unseen.callbacks.base import Callback
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder, resume_config
from unseen.runs.records import read_records

QUICK = {"data": "rotated-digits", "hold_out": "75", "rounds": 1, "batches_per_epoch": 1, "workers": 1}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("csac", {"acquisition_epochs": 1, "alignment": "none"}),
        ("feddg", {"spectra": None}),
        ("feddg", {"spectra": "none"}),
    ],
)
def test_a_run_with_empty_settings_goes_on(tmp_path, method, settings):
    config = RunConfig.from_mapping({**QUICK, "method": method, "settings": settings})
    first = run(config, out=tmp_path / "run")
    assert run(config, out=tmp_path / "run", resume=True).metrics == first.metrics
    recorded = resume_config(tmp_path / "run", {})
    assert run(recorded, out=tmp_path / "run", resume=True).metrics == first.metrics


def test_a_run_with_all_training_options_goes_on_where_it_stopped(tmp_path):
    options = {
        "rounds": 3,
        "optimiser": "sgd-nesterov",
        "schedule": "plateau",
        "schedule_settings": {"patience": 0, "threshold": 0.9},
        "warmup": 1,
        "schedule_per": "epoch",
        "clip_norm": 1.0,
        "head_lr": 2.0,
        "sharpness": "asam",
    }
    config = RunConfig.from_mapping({**QUICK, **options})
    whole = run(config, out=tmp_path / "whole")

    class StopAfterTwo(Callback):
        def on_record(self, record):
            if record["event"] == "evaluation" and record["round"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path / "parts", callbacks=[StopAfterTwo()])
    recorded = resume_config(tmp_path / "parts", {})
    assert recorded.rho == 0.5
    assert run(recorded, out=tmp_path / "parts", resume=True).metrics == whole.metrics
    first, second = (
        Checkpoint.load(RunFolder(tmp_path / name).checkpoint).weights for name in ("whole", "parts")
    )
    assert torch.equal(first, second)
    factors = [r.get("lr_factor") for r in read_records(RunFolder(tmp_path / "parts").records)]
    assert any(factors)


def test_a_setting_that_was_none_is_not_its_default(tmp_path):
    config = RunConfig.from_mapping({**QUICK, "method": "feddg", "settings": {"spectra": None}})
    run(config, out=tmp_path / "run")
    default = RunConfig.from_mapping({**QUICK, "method": "feddg"})
    with pytest.raises(UsageError, match="settings"):
        run(default, out=tmp_path / "run", resume=True)


def test_weights_in_another_order_are_refused_and_kept(tmp_path):
    config = RunConfig.from_mapping({**QUICK, "method": "fedavg"})
    run(config, out=tmp_path / "run")
    place = RunFolder(tmp_path / "run")
    point = Checkpoint.load(place.checkpoint)
    point.layout = "that of an earlier version"
    point.save(place.checkpoint)
    before = place.checkpoint.read_bytes(), place.records.read_bytes()
    with pytest.raises(UsageError, match="differently: choose another --out"):
        run(config, out=tmp_path / "run", resume=True)
    assert (place.checkpoint.read_bytes(), place.records.read_bytes()) == before
