"""A run goes on whatever its method's settings are, also those that are None; never with jumbled weights."""

from __future__ import annotations

import pytest

from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder, resume_config

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
