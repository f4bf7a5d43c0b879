"""Whole runs with closed forms: one round, tables without a network, a head before training, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from unseen.callbacks.base import Callback
from unseen.config import RunConfig
from unseen.data import DataSet, from_arrays
from unseen.errors import UsageError
from unseen.runner.prepare import prepare_run
from unseen.runner.run import run
from unseen.serving import load_model

QUICK = {"data": "tiny", "hold_out": "held", "batch_size": 8, "workers": 1, "lr": 0.001}


def table(*, seed: int = 0) -> DataSet:
    """Four domains of 60 rows whose value is linear in five columns, with noise."""
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(240, 5)).astype(np.float32)
    values = inputs @ np.array([1.0, -2.0, 0.5, 0.0, 3.0]) + generator.normal(scale=0.1, size=240) + 4
    return from_arrays(
        inputs, values, [name for name in ("a", "b", "c", "held") for _ in range(60)], name="t"
    )


class Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, note: str) -> None:
        self.notes.append(note)


def finish(out: Path, data: DataSet, **options: Any) -> tuple[dict[str, Any], list[str]]:
    heard = Notes()
    config = RunConfig.from_mapping({**QUICK, **options})
    return run(config, out=out, report=False, data=data, callbacks=heard).values, heard.notes


def test_ridge_has_one_round_whatever_is_asked_for(make_tiny_data, tmp_path):
    plain, notes = finish(tmp_path / "plain", make_tiny_data(), method="ridge", model="mnist-cnn")
    assert plain["rounds"] == plain["selected_round"] == 1 and not any("--rounds" in note for note in notes)
    assert (tmp_path / "plain" / "model.safetensors").exists()
    _, notes = finish(tmp_path / "more", make_tiny_data(), method="ridge", model="mnist-cnn", rounds=5)
    assert [note for note in notes if "--rounds has no effect" in note]


def test_a_table_gets_a_linear_model_and_ridge_finds_its_coefficients(tmp_path):
    data = table()
    values, _ = finish(tmp_path / "run", data, method="ridge", settings={"strength": 1e-5})
    assert values["model"] == "linear" and values["metrics"]["target"]["rmse"] < 0.2
    setup = prepare_run(RunConfig.from_mapping({**QUICK, "method": "ridge"}), data=data)
    rows = np.concatenate([setup.experiment.federation[place].train for place in range(3)])
    fitted = Ridge(alpha=1e-9).fit(data.inputs[rows], data.targets[rows])
    held = data.inputs[data.indices("held")]
    with torch.no_grad():
        predicted = load_model(tmp_path / "run").network(torch.from_numpy(held)).squeeze(1)
    np.testing.assert_allclose(predicted, fitted.predict(held), atol=2e-3)


def test_a_run_with_a_head_counts_its_exchange_and_is_another_run(make_tiny_data, tmp_path):
    options = {"model": "mnist-cnn", "rounds": 1}
    headed, _ = finish(tmp_path / "headed", make_tiny_data(), head="ridge", **options)
    plain, _ = finish(tmp_path / "plain", make_tiny_data(), **options)
    assert headed["run_id"] != plain["run_id"] and headed["bytes_up"] > 2 * plain["bytes_up"]
    lines = (tmp_path / "headed" / "records.jsonl").read_text().splitlines()
    events = [(record["event"], record.get("round")) for record in map(json.loads, lines)]
    assert events[1:5] == [("round", 0), ("evaluation", 0), ("round", 1), ("evaluation", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "ridge", "protect": "dp-clients"}, r"does not support --head ridge: it also sends"),
        ({"head": "ridge", "method": "ridge"}, "computes the head itself"),
        ({"head": "none"}, "random"),
        ({"method": "ridge", "protect": "dp-samples"}, "sums over the features"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, message, make_tiny_data):
    with pytest.raises(UsageError, match=message):
        prepare_run(RunConfig.from_mapping({**QUICK, **options}), data=make_tiny_data())


@pytest.mark.parametrize("train", ["head", "last-stage", "head.*"])
def test_a_head_starts_whatever_part_is_trained(train, make_tiny_data, tmp_path):
    options = {"model": "mnist-cnn", "rounds": 1, "train": train}
    alone, _ = finish(tmp_path / "alone", make_tiny_data(), method="ridge", model="mnist-cnn", train=train)
    finish(tmp_path / "headed", make_tiny_data(), head="ridge", **options)
    lines = map(json.loads, (tmp_path / "headed" / "records.jsonl").read_text().splitlines())
    first = next(record for record in lines if record["event"] == "evaluation")
    found = [score["metrics"]["accuracy"] for score in first["scores"] if score["split"] == "target"]
    assert first["round"] == 0 and found == [alone["metrics"]["target"]["accuracy"]]


def test_a_frozen_head_is_refused(make_tiny_data, tmp_path):
    options = {"head": "ridge", "model": "mnist-cnn", "train": "stages.hidden.*"}
    with pytest.raises(UsageError, match=r"needs head\.bias among the tensors that are trained"):
        finish(tmp_path / "run", make_tiny_data(), **options)
