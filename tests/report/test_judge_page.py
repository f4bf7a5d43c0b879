"""The page of a judgement: says what was found in plain words, and escapes every name."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import unseen
from unseen.judging.judge_sites import judge
from unseen.report.formatting import p_text
from unseen.report.judge_page import explain_test, judge_page, score_text
from unseen.runner.run import RunResult

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    generator = np.random.default_rng(0)
    targets = np.tile([0, 1], 60)
    inputs = generator.normal(size=(120, 3)) + targets[:, None]
    data = unseen.from_arrays(inputs, targets, np.repeat(["a", "b", "c"], 40))
    folder = tmp_path_factory.mktemp("page")
    run: RunResult = unseen.train(data, hold_out="c", rounds=1, out=folder / "run")
    return judge(run.folder, run.folder, data=data).values


def test_the_page_has_every_part(values):
    page = judge_page(values)
    parts = ("In plain words", "Which model", "How good, site by site", "Is one model better?", "Which data")
    for text in (*parts, "What left the sites", "How the numbers were made", values["models"][0]["sha256"]):
        assert text in page
    assert "run (first)" in page and "run (second)" in page


def test_names_cannot_become_markup(values):
    changed = copy.deepcopy(values)
    changed["sites"][NASTY] = changed["sites"].pop("a")
    changed["models"][0]["name"] = changed["data"] = NASTY
    changed["refused"] = {NASTY: NASTY}
    body = judge_page(changed).partition("<body>")[2]
    assert NASTY not in body and "&lt;script&gt;alert(1)" in body and "Not judged" in body


def test_tests_are_explained_in_words(values):
    values = copy.deepcopy(values)
    values["models"][1]["name"] = "new"
    test = {"metric": "accuracy", "test": "McNemar", "difference": 0.05, "low": 0.01, "high": 0.09,
            "p_value": 0.012, "only_first": 3, "only_second": 9}  # fmt: skip
    said = explain_test(test, values)
    assert (
        "9 samples only new has right, 3 only run" in said and "p = 0.012" in said and "new is better" in said
    )
    assert "no difference is shown" in explain_test(test | {"p_value": 0.4}, values)
    assert "too little data" in explain_test(test | {"p_value": None}, values)
    worse = {
        "metric": "mae",
        "test": "paired t-test",
        "difference": 2.0,
        "low": 1.0,
        "high": 3.0,
        "p_value": 1e-9,
    }
    assert "run is better" in explain_test(worse, values) and "p < 0.0001" in explain_test(worse, values)


def test_numbers_are_formatted_with_their_intervals():
    score = {"value": 0.5, "low": 0.4, "high": 0.6}
    assert score_text("auroc", score) == "50.0\u00a0% (40.0–60.0)"
    assert score_text("brier", score) == "0.5000 (0.4–0.6)"
    assert score_text("auroc", {"value": None, "low": None, "high": None}) == "–"
    assert (p_text(None), p_text(0.04), p_text(1e-7)) == ("–", "0.04", "< 0.0001")
