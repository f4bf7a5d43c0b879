"""Calibration of finished runs: in records, result, model and page."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tiny_data import tiny_data
from unseen.calibration import Calibration
from unseen.calibration.conformal import RULES, SCORES
from unseen.runner.run import train
from unseen.runs.reader import read_run
from unseen.serving import load_model
from unseen.tensor_files import load_tensors

OPTIONS = {"rounds": 2, "lr": 0.05, "batch_size": 8, "validation": 0.3, "test": 0.1, "model": "mnist-cnn"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(tiny_data(per_class=20), hold_out="held", out=folder, workers=1, **OPTIONS)


def test_records_have_every_domain_before_and_after_and_the_promise_next_to_coverage(finished):
    final = read_run(finished.folder).final
    sources = {"a", "b", "c"}
    assert final["calibration"]["sources"].keys() == sources == final["calibration"]["left_out"].keys()
    for score in final["scores"]:
        assert {"ece", "brier", "nll"} < score["calibration"]["before"].keys()
        assert score["conformal"].keys() == set(SCORES)
        assert score["conformal"]["aps"].keys() == {"0.8", "0.9", "0.95"}
        assert score["conformal"]["aps"]["0.9"].keys() == RULES.keys()
        assert 0 <= score["details"]["auroc"] <= 1
        assert score["metrics"].keys() == {"accuracy", "worst_class_accuracy", "loss"}
        assert score["calibration"]["before"]["nll"] == pytest.approx(score["metrics"]["loss"], rel=1e-5)
        if score["split"] == "validation":
            assert score["conformal"]["lac"]["0.9"]["worst-source"]["coverage"] >= 0.9
    nll = {
        when: sum(
            s["count"] * s["calibration"][when]["nll"] for s in final["scores"] if s["split"] == "validation"
        )
        for when in ("before", "after")
    }
    assert nll["after"] < nll["before"]
    kinds = [line["kind"] for line in finished.values["left"]]
    assert any("calibrate" in kind for kind in kinds)


def test_the_result_says_what_was_measured_on_the_held_out_domain(finished):
    result = finished.values
    assert result["conformal"]["target"].keys() == RULES.keys()
    assert result["details"]["worst_domain"]["auroc"].keys() == {"where", "value"}
    assert result["calibration"]["target"].keys() == {"before", "after"}
    assert result["metrics"]["target"].keys() == {"accuracy", "worst_class_accuracy", "loss"}


def test_the_model_carries_its_calibration_which_covers_what_the_records_say(finished):
    saved = load_model(finished.folder)
    calibration = saved.card.calibrated
    data = tiny_data(per_class=20)
    rows = np.flatnonzero(data.domain_of == 3)
    logits = saved.outputs(torch.from_numpy(data.inputs[rows]).permute(0, 3, 1, 2)).double().numpy()
    found = next(s for s in read_run(finished.folder).final["scores"] if s["split"] == "target")
    for score in SCORES:
        sets = calibration.sets(logits, score=score)
        said = found["conformal"][score]["0.9"]["widened"]
        assert sets[np.arange(len(rows)), data.targets[rows]].mean() == pytest.approx(said["coverage"])
        assert sets.sum(1).mean() == pytest.approx(said["size"])
    file = json.loads((finished.folder / "calibration.json").read_text())
    assert Calibration.from_dict(file) == calibration
    assert {(each["domain"], each["split"]) for each in file["sets"]} >= {
        ("a", "validation"),
        ("held", "target"),
    }


def test_the_page_shows_it(finished):
    page = (finished.folder / "report.html").read_text()
    assert "Reliability of the probabilities" in page and "widened: coverage (size)" in page
    assert "AUROC" in page and "ECE, after" in page


@pytest.mark.parametrize("choice", ["vector", "none"])
def test_the_choice_of_scaling(choice, finished, tmp_path):
    run = train(
        tiny_data(per_class=20), hold_out="held", out=tmp_path / "run", workers=1, calibrate=choice, **OPTIONS
    )
    scaling = load_model(run.folder).card.calibrated.scaling
    assert scaling.kind == choice and len(scaling.weights) == (3 if choice == "vector" else 1)
    weights = [load_tensors(each.folder / "model.safetensors").tensors for each in (run, finished)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert run.metrics == finished.metrics


def test_without_validation_samples_there_are_metrics_but_no_promise(tmp_path):
    run = train(
        tiny_data(),
        hold_out="held",
        out=tmp_path / "run",
        workers=1,
        **OPTIONS | {"validation": 0.0},
        selection="last",
    )
    final = read_run(run.folder).final
    assert final["calibration"]["conformal"]["limits"] == {} and "conformal" not in run.values
    assert all("auroc" in score["details"] for score in final["scores"])


def test_validation_domains_give_the_rule_for_unseen_ones(tmp_path):
    run = train(tiny_data(), hold_out="held", validate_on="c", out=tmp_path / "run", workers=1, **OPTIONS)
    assert run.values["conformal"]["target"].keys() == {*RULES, "unseen"}


def test_labels_of_the_held_out_domain_decide_nothing(finished, tmp_path):
    """What is fitted and kept with a model is the same whatever the held-out labels are."""
    data = tiny_data(per_class=20)
    targets = data.targets.copy()
    held_out = data.indices("held")
    targets[held_out] = np.roll(targets[held_out], 7)
    assert not np.array_equal(targets, data.targets)
    other = train(replace(data, targets=targets), hold_out="held", out=tmp_path / "run", workers=1, **OPTIONS)
    before, after = read_run(finished.folder).final, read_run(other.folder).final
    assert after["calibration"] == before["calibration"]
    assert after["site_reference"] == before["site_reference"]
    moved = [score["metrics"] for score in (before["scores"][-1], after["scores"][-1])]
    assert moved[0] != moved[1], "the scores of the held-out domain do follow its labels"
