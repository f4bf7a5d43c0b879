"""A single plugin file adds a task, metrics and a selection rule; nothing else has to know of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unseen.registry import PLUGINS_VARIABLE

PLUGIN = '''
import torch
from torch.nn import functional as F

from unseen.evaluation.selection import BestOn, register_rule
from unseen.tasks import Metric, register_metric, register_task
from unseen.tasks.classification import Classification


@register_task
class Focal(Classification):
    """Classification by the focal loss."""

    name, summary = "focal", "classification by the focal loss"

    def loss(self, outputs, targets, *, label_smoothing=0.0, reduction="mean"):
        log_p = F.log_softmax(outputs, dim=1).gather(1, targets[:, None]).squeeze(1)
        losses = -((1 - log_p.exp()) ** 2) * log_p
        return losses if reduction == "none" else getattr(losses, reduction)()


@register_metric
class MacroF1(Metric):
    """Mean F1 over the classes."""

    name, label, summary = "macro_f1", "macro F1", "mean F1 over the classes"
    tasks, is_fraction = ("classification",), True

    def compute(self, sums):
        matrix = sums.confusion.double()
        right = matrix.diagonal()
        return float((2 * right / (matrix.sum(0) + matrix.sum(1)).clamp(min=1)).mean())


@register_metric
class Confidence(Metric):
    """Mean probability of the predicted class: needs sums of its own."""

    name, label, summary, tasks = "confidence", "mean confidence", "mean top probability", ("focal",)

    def batch_sums(self, outputs, targets):
        return outputs.softmax(dim=1).max(dim=1).values.double().sum().reshape(1)

    def compute(self, sums):
        return float(sums.extra[self.name][0]) / max(sums.count, 1)


@register_rule
class FirstRound(BestOn):
    """The first round."""

    name, label, summary, split = "first", "first round", "the first round was taken", "validation"

    def rank(self, evaluation, metric):
        assert all(score["split"] != "target" for score in evaluation["scores"]), "the target is visible"
        return 0.0, 0.0, -evaluation["round"]
'''


def run(folder: Path, *arguments: str, plugin: Path | None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({PLUGINS_VARIABLE: str(plugin)} if plugin else {})
    command = [sys.executable, "-m", "unseen", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=300
    )


def records_of(folder: Path, event: str) -> list[dict[str, Any]]:
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["event"] == event]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plugin") / "focal.py"
    path.write_text(PLUGIN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def finished(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    done = run(
        folder,
        *("train", "rotated-digits", "--hold-out", "75", "--rounds", "2", "--workers", "2", "--out", "out"),
        *("--task", "focal", "--selection", "first", "--batch-size", "16"),
        plugin=plugin,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def test_a_metric_of_a_plugin_is_in_every_record_and_in_the_result(finished: Path) -> None:
    for record in (*records_of(finished, "evaluation"), *records_of(finished, "final")):
        for score in record["scores"]:
            names = ["accuracy", "worst_class_accuracy", "loss", "confidence", "macro_f1"]
            assert list(score["metrics"]) == names
            assert 0 <= score["metrics"]["macro_f1"] <= 1 and 0 < score["metrics"]["confidence"] <= 1
    result = json.loads((finished / "result.json").read_text(encoding="utf-8"))
    assert {"macro_f1", "confidence"} <= result["metrics"]["target"].keys()


def test_a_metric_equals_its_definition_on_the_recorded_confusion_matrix(finished: Path) -> None:
    final = records_of(finished, "final")[0]
    matrix = final["confusion"][0]["matrix"]
    f1 = [
        2 * matrix[i][i] / max(sum(matrix[i]) + sum(row[i] for row in matrix), 1) for i in range(len(matrix))
    ]
    found = next(score for score in final["scores"] if score["split"] == "target")["metrics"]["macro_f1"]
    assert found == pytest.approx(sum(f1) / len(f1))


def test_the_page_names_a_metric_by_its_label_and_shows_fractions_in_percent(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "macro F1" in page and "mean confidence" in page and "macro_f1<" not in page


def test_a_task_of_a_plugin_trains_and_evaluates_by_its_own_loss(
    finished: Path, plugin: Path, tmp_path: Path
) -> None:
    assert 'task = "focal"' in (finished / "config.toml").read_text(encoding="utf-8")
    done = run(
        tmp_path,
        *("train", "rotated-digits", "--hold-out", "75", "--rounds", "1", "--workers", "1", "--out", "out"),
        *("--batch-size", "16"),
        plugin=None,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    usual, focal = records_of(tmp_path / "out", "round")[0], records_of(finished, "round")[0]
    assert focal["loss"] < usual["loss"], "the focal loss is the cross-entropy times a factor below one"
    usual, focal = records_of(tmp_path / "out", "evaluation")[0], records_of(finished, "evaluation")[0]
    assert list(usual["scores"][0]["metrics"]) == ["accuracy", "worst_class_accuracy", "loss"]
    assert focal["scores"][0]["metrics"]["loss"] != usual["scores"][0]["metrics"]["loss"]


def test_a_selection_rule_of_a_plugin_chooses_without_target_scores(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text(encoding="utf-8"))
    assert (result["selection"], result["selected_round"]) == ("first", 1)
    assert "first round" in (finished / "report.html").read_text(encoding="utf-8")


def test_without_the_plugin_its_names_are_refused_with_those_there_are(tmp_path: Path) -> None:
    done = run(tmp_path, "train", "rotated-digits", "--hold-out", "75", "--task", "focal", plugin=None)
    assert done.returncode == 2 and "unknown task" in done.stderr and "classification" in done.stderr
