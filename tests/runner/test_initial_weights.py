"""What a run starts from: `auto` records what it found, and says so where it found nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from unseen.callbacks.base import Callback
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.errors import UnseenError
from unseen.models import InputSpec, build_model
from unseen.runner.prepare import Setup, prepare_run
from unseen.runner.run import run
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

FILE = "weights/mnist-cnn_imagenet.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "weights").mkdir(parents=True)
    network = build_model("mnist-cnn", InputSpec((3, 8, 8), 9), seed=5)
    save_file(dict(network.state_dict()), tmp_path / "root" / FILE)
    return tmp_path / "root"


def config(weights: str | None, root: Path | None = None, **more: Any) -> RunConfig:
    return RunConfig.from_mapping(
        {
            "data": "tiny",
            "hold_out": ("held",),
            "model": "mnist-cnn",
            "weights": weights,
            "data_root": str(root) if root else None,
            "rounds": 1,
            "batch_size": 4,
            "workers": 1,
            "threads": 1,
            **more,
        }
    )


@pytest.fixture
def prepared(make_tiny_data: Callable[..., DataSet]) -> Callable[..., Setup]:
    def prepare(weights: str | None, root: Path | None = None) -> Setup:
        return prepare_run(config(weights, root), data=make_tiny_data())

    return prepare


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSEEN_DATA", raising=False)


def test_auto_that_finds_a_file_is_the_run_of_imagenet(prepared, root):
    found, named, random = prepared("auto", root), prepared("imagenet", root), prepared(None, root)
    assert found.config.weights == "imagenet"
    assert found.run_id == named.run_id != random.run_id
    assert found.notes == ("pretrained weights: mnist-cnn_imagenet.safetensors below the data root",)
    assert named.notes == random.notes == ()
    first = "stages.conv1.0.weight"
    of_auto, of_imagenet, of_random = (
        setup.experiment.network.state_dict()[first] for setup in (found, named, random)
    )
    assert torch.equal(of_auto, of_imagenet)
    assert not torch.equal(of_auto, of_random)


def test_other_content_is_another_run(prepared, root):
    before = prepared("auto", root).run_id
    network = build_model("mnist-cnn", InputSpec((3, 8, 8), 9), seed=6)
    save_file(dict(network.state_dict()), root / FILE)
    assert prepared("auto", root).run_id != before


def test_auto_that_finds_nothing_is_the_run_of_random_weights_with_a_note(prepared):
    nothing, random, left_out = prepared("auto"), prepared("random"), prepared(None)
    assert nothing.config.weights is None
    assert nothing.run_id == random.run_id == left_out.run_id
    assert len(nothing.notes) == 1
    assert nothing.notes[0].startswith("mnist-cnn starts from random weights")
    assert random.notes == ()
    with pytest.raises(UnseenError, match="no ImageNet weights for mnist-cnn"):
        prepared("imagenet")


class Notes(Callback):
    """Keeps what a user is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_note(self, note: str) -> None:
        self.told.append(note)


@pytest.mark.parametrize("there", [True, False])
def test_the_line_is_told_and_recorded_without_a_path_and_the_run_resumes(
    root, tmp_path, there, make_tiny_data
):
    out, notes = tmp_path / "run", Notes()
    given = config("auto", root if there else None)
    run(given, out=out, data=make_tiny_data(), report=False, callbacks=notes)
    start = next(record for record in read_records(RunFolder(out).records) if record["event"] == "start")
    assert notes.told[0] in start["data"]["notes"]
    assert ("random" in notes.told[0]) != there
    assert str(root) not in str(start)
    recorded = RunConfig.load(RunFolder(out).config)
    assert recorded.weights == ("imagenet" if there else None)
    again = run(recorded, out=out, data=make_tiny_data(), report=False, resume=True)
    assert again.values["run_id"] == start["run_id"]
