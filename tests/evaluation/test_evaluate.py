"""Groups across domains: their metrics against plain NumPy, and what records and results say of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen import train
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.errors import UsageError
from unseen.evaluation.evaluate import GroupedAccumulator, score_groups, summarize_groups
from unseen.evaluation.selection import select
from unseen.run_identity import LATER, PROTECTION, WHERE
from unseen.runner.finalize import make_result
from unseen.tasks import TASKS

NAMES = ("town", "country", "sea")


def accumulated(
    outputs: np.ndarray, targets: np.ndarray, groups: np.ndarray, *, batch: int = 7
) -> GroupedAccumulator:
    task = "regression" if targets.dtype.kind == "f" else "classification"
    sums = GroupedAccumulator(groups, partial(TASKS[task].make_accumulator, outputs.shape[1]))
    for rows in torch.arange(len(targets)).split(batch):
        sums.add(torch.from_numpy(outputs)[rows], torch.from_numpy(targets)[rows])
    return sums


class TestGroupedAccumulator:
    @given(seed=st.integers(0, 1000), count=st.integers(1, 60), batch=st.integers(1, 20))
    def test_each_group_and_the_whole_as_numpy_counts_them(self, seed: int, count: int, batch: int) -> None:
        draw = np.random.default_rng(seed)
        outputs = draw.normal(size=(count, 4)).astype(np.float32)
        targets, groups = draw.integers(0, 4, count), draw.integers(-1, 3, count)
        sums = accumulated(outputs, targets, groups, batch=batch)
        right = outputs.argmax(axis=1) == targets
        assert sums.count == count
        assert sums.metrics()["accuracy"] == pytest.approx(right.mean())
        for number, part in sums.groups.items():
            assert part.count == (groups == number).sum()
            assert part.metrics()["accuracy"] == pytest.approx(right[groups == number].mean())

    def test_domains_are_pooled_before_the_worst_is_found(self) -> None:
        draw = np.random.default_rng(0)
        outputs = draw.normal(size=(90, 1)).astype(np.float32)
        targets = (outputs[:, 0] + draw.normal(size=90) * 2).astype(np.float32)
        groups = draw.integers(-1, 2, 90)
        cuts = (slice(0, 40), slice(40, 90))
        parts = [accumulated(outputs[cut], targets[cut], groups[cut]) for cut in cuts]
        scores = score_groups(["target", "target"], parts, NAMES)
        assert [score["group"] for score in scores] == [None, "town", "country"]
        expected = {
            name: np.corrcoef(outputs[rows, 0], targets[rows])[0, 1]
            for name, rows in ((None, groups > -2), ("town", groups == 0), ("country", groups == 1))
        }
        for score in scores:
            assert score["metrics"]["pearson_r"] == pytest.approx(expected[score["group"]])
        found = summarize_groups({"groups": scores}, "target", "pearson_r")
        worst = min(("town", "country"), key=expected.__getitem__)
        assert found["pooled"] == pytest.approx(expected[None])
        assert found["group"] == worst
        assert found["worst"] == pytest.approx(expected[worst])
        assert [sums.count for sums in parts] == [40, 50], "pooling must not change the domains' own sums"

    def test_samples_of_no_group_count_for_the_whole_only(self) -> None:
        outputs, targets = np.eye(2, dtype=np.float32)[[0, 0, 1]], np.array([0, 0, 0])
        scores = score_groups(["target"], [accumulated(outputs, targets, np.array([0, 0, -1]))], NAMES)
        found = summarize_groups({"groups": scores}, "target", "accuracy")
        assert found["pooled"] == pytest.approx(2 / 3)
        assert (found["worst"], found["group"]) == (1.0, "town")

    def test_what_cannot_be_computed_is_the_worst(self) -> None:
        scores = [
            {"split": "target", "group": group, "metrics": {"pearson_r": value}}
            for group, value in ((None, 0.3), ("town", -0.4), ("country", None))
        ]
        found = summarize_groups({"groups": scores}, "target", "pearson_r")
        assert found == {"pooled": 0.3, "worst": None, "group": "country"}
        assert summarize_groups({"scores": []}, "target", "pearson_r") == {}


def evaluation(number: int, accuracy: dict[str, float], pooled: float | None = None) -> dict:
    scores = [
        {
            "domain": f"{split} of {number}",
            "split": split,
            "count": 1,
            "metrics": {"accuracy": value, "loss": 1.0},
        }
        for split, value in accuracy.items()
    ]
    record = {"event": "evaluation", "round": number, "scores": scores}
    if pooled is not None:
        metrics = {"accuracy": pooled, "loss": 1.0}
        record["groups"] = [{"split": "validation-domain", "group": None, "count": 1, "metrics": metrics}]
    return record


class TestSelection:
    def test_validation_domains_choose_and_nothing_else_does(self) -> None:
        records = [
            evaluation(1, {"validation": 0.9, "validation-domain": 0.2, "target": 0.9}),
            evaluation(2, {"validation": 0.1, "validation-domain": 0.3, "target": 0.1}),
        ]
        assert select(records, "validation-domains", "classification") is records[1]
        assert select(records, "source-validation", "classification") is records[0]

    def test_with_groups_all_their_samples_together_choose(self) -> None:
        records = [
            evaluation(1, {"validation-domain": 0.5}, pooled=0.6),
            evaluation(2, {"validation-domain": 0.6}, pooled=0.5),
        ]
        assert select(records, "validation-domains", "classification") is records[0]

    def test_the_rule_needs_domains(self) -> None:
        with pytest.raises(UsageError, match="--validate-on"):
            RunConfig.from_mapping({"data": "x", "hold_out": "a", "selection": "validation-domains"})

    def test_validation_domains_bring_their_rule_unless_another_is_named(self) -> None:
        options = {"data": "x", "hold_out": "a", "validate_on": "b"}
        assert RunConfig.from_mapping(options).selection == "validation-domains"
        assert RunConfig.from_mapping({**options, "selection": "last"}).selection == "last"
        assert RunConfig.from_mapping({"data": "x", "hold_out": "a"}).selection == "source-validation"

    def test_runs_without_them_keep_their_identity(self) -> None:
        plain = RunConfig.from_mapping({"data": "x", "hold_out": "a"})
        later = (*WHERE, *PROTECTION, *LATER, "validate_on")
        before = {key: value for key, value in asdict(plain).items() if key not in later}
        text = json.dumps(before, sort_keys=True, default=str)
        assert plain.identity() == hashlib.sha256(text.encode()).hexdigest()[:12]
        assert plain.identity() != replace(plain, validate_on=("b",)).identity()


@pytest.fixture
def grouped(make_tiny_data) -> DataSet:
    """Tiny images with two groups in every domain; some samples belong to none."""
    data = make_tiny_data(("a", "b", "choose", "held", "held too"))
    group_of = np.arange(len(data)) % 3 - 1
    return replace(data, group_of=group_of, groups=("even", "odd"), fingerprint="")


def run(data: DataSet, out: Path, **options) -> tuple[dict, list[dict]]:
    settings = {"rounds": 2, "batch_size": 4, "workers": 1, "lr": 0.02, "validation": 0.25, "test": 0.125}
    result = train(
        data, hold_out=("held", "held too"), validate_on="choose", out=out, **{**settings, **options}
    )
    lines = (result.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return result.values, [json.loads(line) for line in lines]


def test_a_run_tells_groups_and_validation_domains(grouped, tmp_path):
    result, records = run(grouped, tmp_path / "run")
    metrics = result["metrics"]
    assert result["validate_on"] == ["choose"]
    assert result["selection"] == "validation-domains"
    assert {client["name"] for client in records[0]["clients"]} == {"a", "b"}
    assert records[0]["data"]["groups"] == ["even", "odd"]
    final = next(record for record in records if record["event"] == "final")
    of_target = {score["group"]: score for score in final["groups"] if score["split"] == "target"}
    assert of_target[None]["count"] == 48
    assert of_target["even"]["count"] == of_target["odd"]["count"] == 16
    values = {group: score["metrics"]["accuracy"] for group, score in of_target.items()}
    worst = min(("even", "odd"), key=values.__getitem__)
    assert metrics["worst_group"] == {"group": worst, "accuracy": values[worst]}
    assert metrics["target"]["worst_group_accuracy"] == values[worst]
    assert metrics["target"]["pooled_accuracy"] == pytest.approx(metrics["target"]["accuracy"])
    assert "worst_group_accuracy" in metrics["validation_domains"]
    assert metrics["source_validation"]["accuracy"] is not None
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "worst group of the held-out domains" in page
    assert "kept to choose the round" in page
    assert make_result(records, selection="validation-domains", task="classification")["metrics"] == metrics


def test_worker_processes_tell_the_same(grouped, tmp_path):
    _, alone = run(grouped, tmp_path / "alone")
    _, together = run(grouped, tmp_path / "together", workers=2)
    for one, two in zip(alone, together, strict=True):
        assert one.get("groups") == two.get("groups")
        assert one.get("scores") == two.get("scores")


def test_without_groups_and_validation_domains_nothing_new_is_recorded(make_tiny_data, tmp_path):
    data = make_tiny_data()
    result = train(data, hold_out="held", rounds=1, batch_size=4, workers=1, out=tmp_path / "run")
    assert "validate_on" not in result.values
    assert not {"worst_group", "validation_domains"} & set(result.metrics)
    assert not any("group" in name for name in result.metrics["target"])
    assert '"groups"' not in (tmp_path / "run" / "records.jsonl").read_text(encoding="utf-8")


def test_a_domain_has_one_role(grouped, tmp_path):
    with pytest.raises(UsageError, match="cannot be held out and used for validation"):
        train(grouped, hold_out="held", validate_on="held", out=tmp_path / "run")
    with pytest.raises(UsageError, match="unknown validation domain"):
        train(grouped, hold_out="held", validate_on="chose", out=tmp_path / "run")


def test_the_round_is_chosen_by_the_validation_domain_alone(grouped, tmp_path):
    """Noise for labels of the held-out domains changes no choice; noise in the validation domain may."""
    noisy = grouped.targets.copy()
    rows = np.concatenate([grouped.indices("held"), grouped.indices("held too")])
    noisy[rows] = np.random.default_rng(0).permutation(noisy[rows])
    honest, records = run(grouped, tmp_path / "honest", rounds=3)
    blind, _ = run(replace(grouped, targets=noisy, fingerprint=""), tmp_path / "blind", rounds=3)
    assert honest["selected_round"] == blind["selected_round"]
    assert honest["metrics"]["validation_domains"] == blind["metrics"]["validation_domains"]
    assert honest["metrics"]["target"] != blind["metrics"]["target"]
    best = max(
        (record for record in records if record["event"] == "evaluation"),
        key=lambda record: next(
            (score["metrics"]["accuracy"], -score["metrics"]["loss"], -record["round"])
            for score in record["groups"]
            if score["split"] == "validation-domain" and score["group"] is None
        ),
    )
    assert honest["selected_round"] == best["round"]
