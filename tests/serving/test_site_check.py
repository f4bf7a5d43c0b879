"""A model trained on digits at 0 to 30 degrees: another half of a source is no different, 75 degrees is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tiny_data import tiny_data
from unseen.data import DataRequest, DataSet, load_data
from unseen.errors import UnseenError, UsageError
from unseen.runner.run import train
from unseen.runs.reader import read_run
from unseen.serving import SavedModel, SiteData, check_site, load_model, predict
from unseen.serving.predict import predict_rows

ANGLES = ("0", "15", "30", "75")


@pytest.fixture(scope="module")
def few_angles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run without every other digit at 15 degrees, and those as files in folders named by class.

    It takes some seconds: features of an untrained network tell no angle from another.
    """
    data = load_data(DataRequest("rotated-digits"))
    others = data.indices("15")[1::2]
    rows = np.concatenate([np.setdiff1d(data.indices(angle), others) for angle in ANGLES])
    names = [ANGLES.index(data.domains[number]) for number in data.domain_of[rows].tolist()]
    known = DataSet(
        name="few-angles",
        task=data.task,
        inputs=data.inputs[rows],
        targets=data.targets[rows],
        domain_of=np.array(names),
        domains=ANGLES,
        classes=data.classes,
    )
    place = tmp_path_factory.mktemp("angles")
    options = {"rounds": 4, "local_epochs": 4, "lr": 0.05, "batch_size": 16, "validation": 0.3, "test": 0.0}
    run = train(known, hold_out="75", out=place / "run", workers=1, **options).folder
    for row in others.tolist():
        file = place / "others" / data.classes[data.targets[row]] / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.inputs[row, ..., 0]).save(file)
    return run, place / "others"


@pytest.fixture(scope="module")
def saved(few_angles) -> SavedModel:
    return load_model(few_angles[0])


def test_another_half_of_a_source_is_not_flagged(saved, few_angles):
    check = check_site(saved, SiteData(str(few_angles[1])))
    assert not check.difference.different and check.difference.unusual["distance"] <= 0.06
    right = [item.label == Path(item.name).parent.name for item in predict(saved, few_angles[1])]
    assert check.accuracy == pytest.approx(np.mean(right))
    assert check.expected.low <= check.accuracy <= check.expected.high
    assert len(check.usual) == len(check.unusual) == 6
    assert check.usual[0].prediction.distance <= check.unusual[0].prediction.distance
    assert check.usual[0].pixels.shape == (16, 16, 1)


def test_a_far_angle_is_flagged_whatever_accuracy_is_expected_there(saved):
    check = check_site(saved, SiteData("rotated-digits", "75"), batch_size=50)
    whole = check_site(saved, SiteData("rotated-digits", "75"))
    assert check.difference.far and check.verdict.name == "do not use"
    assert check.difference.p_values["mean"] < 1e-6
    assert check.difference.p_value == pytest.approx(whole.difference.p_value, rel=1e-4)
    assert check.accuracy == whole.accuracy < check.reference.accuracy


def test_records_say_what_left_and_compare_the_held_out_domain(few_angles, saved):
    run = read_run(few_angles[0])
    (held,) = run.final["sites"]
    check = check_site(saved, SiteData("rotated-digits", "75"))
    assert held["accuracy"] == pytest.approx(check.accuracy)
    assert held["expected_accuracy"]["accuracy"] == pytest.approx(check.expected.accuracy)
    entries = [entry for entry in run.final["left"] if entry["kind"].startswith("sums and products")]
    assert {name for entry in entries for name in entry["from"]} == set(ANGLES)
    assert run.final["site_reference"]["samples"].keys() == {"0", "15", "30"}
    assert "covariance" not in run.final["site_reference"]


def test_a_model_without_moments_says_what_to_do(saved):
    bare = SavedModel(saved.network, replace(saved.card, site_reference=None))
    with pytest.raises(UnseenError, match="keeps nothing of its sources"):
        check_site(bare, SiteData("rotated-digits", "75"))
    (found,) = predict_rows(bare, load_data(DataRequest("rotated-digits")), np.array([0]))
    assert found.distance is None and found.unusual is None and found.members


def test_wrong_places_are_refused_in_one_line(saved, tmp_path):
    for site, kind, text in (
        (SiteData("rotated-digits", "80"), UsageError, "it has: 0, 15, 30"),
        (SiteData(str(tmp_path), "75"), UsageError, "is no named data set"),
        (SiteData(str(tmp_path / "nothing")), UnseenError, "no such folder"),
    ):
        with pytest.raises(kind, match=text) as caught:
            check_site(saved, site)
        assert "\n" not in str(caught.value)
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(UnseenError, match="nothing to compare"):
        check_site(saved, SiteData(str(tmp_path)))


def test_nothing_is_kept_with_a_protection_or_on_request(tmp_path):
    for place, options in (("off", {"site_moments": "none"}), ("sum", {"protect": "secure-sum"})):
        run = train(
            tiny_data(per_class=20),
            hold_out="held",
            out=tmp_path / place,
            workers=1,
            rounds=1,
            batch_size=8,
            validation=0.3,
            model="mnist-cnn",
            **options,
        )
        assert load_model(run.folder).card.site_reference is None
        final = read_run(run.folder).final
        assert "sites" not in final and "sums and products" not in json.dumps(final["left"])
