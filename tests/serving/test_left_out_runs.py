"""Calibration on sources that other runs left out, against what those runs answer there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logit

from tiny_data import tiny_data
from unseen.calibration import class_scores
from unseen.calibration.conformal import PROMISES
from unseen.data import Samples
from unseen.errors import UnseenError, UsageError
from unseen.runner.run import train
from unseen.runs.reader import read_run
from unseen.serving import load_model
from unseen.serving.left_out_runs import calibrate_on_left_out, forecast, read_left_out

OPTIONS = {"rounds": 2, "lr": 0.05, "batch_size": 8, "validation": 0.3, "model": "mnist-cnn", "workers": 1}
SOURCES = ("a", "b", "c")
DATA = tiny_data((*SOURCES, "held"), per_class=20)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """The model's run under "", and one for every source that was left out."""
    place = tmp_path_factory.mktemp("left-out")
    held = {"": "held"} | {source: ("held", source) for source in SOURCES}
    return {
        name: train(DATA, hold_out=out, out=place / f"run-{name}", **OPTIONS).folder
        for name, out in held.items()
    }


@pytest.fixture(scope="module")
def found(runs):
    card = load_model(runs[""]).card
    return [each for source in SOURCES for each in read_left_out(card, runs[source])]


def answers(run: Path, domain: str):
    rows = DATA.indices(domain)
    samples = Samples(DATA, rows)
    inputs = samples.gather(samples.targets.new_tensor(range(len(rows)))).inputs
    return load_model(run).outputs(inputs).double().numpy(), samples.targets.numpy()


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_thresholds_keep_the_promise_on_average_over_left_out_sources(runs, found, score):
    card = calibrate_on_left_out(load_model(runs[""]).card, found)
    assert card.calibrated is not None and card.calibrated.default["rule"] == "unseen"
    scores = []
    for source in SOURCES:
        logits, targets = answers(runs[source], source)
        own = load_model(runs[source]).calibration
        assert own is not None
        scores.append(class_scores(own.probabilities(logits), score)[np.arange(len(targets)), targets])
    for promise in PROMISES:
        limit = card.calibrated.limit(score=score, promise=promise)
        covered = np.mean([(each < (np.inf if limit is None else limit)).mean() for each in scores])
        assert covered >= promise - 1e-9
        if limit is not None:  # one bin of scores less does not keep it
            assert np.mean([(each < limit - 0.0041).mean() for each in scores]) < promise


def test_the_expected_accuracy_is_corrected_by_what_the_runs_recorded(runs, found):
    card = load_model(runs[""]).card
    after = calibrate_on_left_out(card, found).sources_seen
    assert after is not None and card.sources_seen is not None and card.sources_seen.shift == 0
    shifts = {}
    for source in SOURCES:
        site = next(each for each in read_run(runs[source]).final["sites"] if each["domain"] == source)
        bounded = np.clip([site["expected_accuracy"]["accuracy"], site["accuracy"]], 0.005, 0.995)
        shifts[source] = float(np.subtract(*logit(bounded)))
    assert after.shift == pytest.approx(np.mean(list(shifts.values())))
    assert after.errors.keys() == set(SOURCES)
    for check, source in zip(forecast(found), SOURCES, strict=True):
        assert check.domain == source and check.samples == 60
        assert check.estimate - check.accuracy == pytest.approx(after.errors[source])


def test_the_rest_of_the_card_stays_and_old_rules_can_still_be_named(runs, found):
    card = load_model(runs[""]).card
    after = calibrate_on_left_out(card, found)
    assert replace(after, calibration=None, site_reference=None) == replace(
        card, calibration=None, site_reference=None
    )
    assert after.calibrated.limit(rule="pooled") == card.calibrated.limit(rule="pooled")
    assert set(after.calibration["left_out_runs"].values()) == set(SOURCES)


def test_the_study_of_finished_runs_measures_what_calibrate_gives(runs, found, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from calibration_study import read_study, study_run

    studied = [read_study(folder) for folder in runs.values()]
    domain = study_run(studied[0], studied, 0.9)["domains"][0]
    logits, targets = answers(runs[""], "held")
    sets = calibrate_on_left_out(load_model(runs[""]).card, found).calibrated.sets(logits)
    covered = sets[np.arange(len(targets)), targets].mean()
    expected = {"coverage": pytest.approx(covered), "size": pytest.approx(sets.sum(axis=1).mean())}
    assert domain["domain"] == "held" and domain["coverage"]["aps"]["left-out"] == expected


def test_runs_that_do_not_fit_are_refused(runs, tmp_path):
    card = load_model(runs[""]).card
    with pytest.raises(UsageError, match="left out none of the model's sources"):
        read_left_out(card, runs[""])
    with pytest.raises(UsageError, match="trained on b, which the model did not"):
        read_left_out(replace(card, sources=("a", "c")), runs["a"])
    with pytest.raises(UsageError, match="has method 'fedavg', the model 'csac'"):
        read_left_out(replace(card, method="csac"), runs["a"])
    with pytest.raises(UnseenError, match="is not a run folder"):
        read_left_out(card, tmp_path)
    shutil.copytree(runs["a"], tmp_path / "damaged")
    (tmp_path / "damaged" / "result.json").rename(tmp_path / "result.json")
    with pytest.raises(UsageError, match="no finished run"):
        read_left_out(card, tmp_path / "damaged")
    (tmp_path / "result.json").rename(tmp_path / "damaged" / "result.json")
    (tmp_path / "damaged" / "calibration.json").write_text('{"sets": [{}]}')
    with pytest.raises(UnseenError, match="damaged"):
        read_left_out(card, tmp_path / "damaged")


def test_two_different_sources_and_a_calibration_are_needed(runs, found):
    card = load_model(runs[""]).card
    with pytest.raises(UsageError, match="at least 2 different sources"):
        calibrate_on_left_out(card, [found[0], found[0]])
    with pytest.raises(UsageError, match="only models of classes that have a calibration"):
        calibrate_on_left_out(replace(card, calibration=None), found)
    without = calibrate_on_left_out(replace(card, site_reference=None), found)
    assert without.site_reference is None and without.calibrated.default["rule"] == "unseen"
