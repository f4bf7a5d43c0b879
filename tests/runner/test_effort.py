"""Efforts choose what the user leaves open, for photographs only, and say what they chose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.config import RunConfig
from unseen.data import from_arrays
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.runner.effort import EFFORTS, describe_choices, with_effort
from unseen.runner.prepare import prepare_run


def make_folder(path: Path, side: int) -> Path:
    generator = np.random.default_rng(0)
    for domain in "abc":
        for label in ("cat", "dog"):
            place = path / domain / label
            place.mkdir(parents=True)
            for number in range(3):
                pixels = generator.integers(0, 255, (side, side + 7, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return path


@pytest.mark.parametrize("name", EFFORTS)
def test_every_effort_is_a_valid_configuration(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 200)
    options = with_effort({"data": str(folder), "hold_out": "c", "effort": name})
    config = RunConfig.from_mapping(options)
    config.check_names()
    assert config.effort == name
    assert config.weights == "auto"
    assert config.image_size == EFFORTS[name].image_size
    assert config.settings == {"weighting": "uniform"}


def test_standard_is_chosen_for_photographs_and_shown(tmp_path: Path) -> None:
    given = {"data": str(make_folder(tmp_path / "photos", 200)), "hold_out": "c"}
    options = with_effort(given)
    assert options["effort"] == "standard"
    line = describe_choices(options, given)
    assert line.startswith("effort standard") and "batch-norm frozen" in line and "data" not in line


def test_given_options_are_kept(tmp_path: Path) -> None:
    given = {
        "data": str(make_folder(tmp_path / "photos", 200)),
        "hold_out": "c",
        "lr": 0.5,
        "image_size": 64,
        "settings": {"weighting": "samples"},
    }
    options = with_effort(given)
    assert {key: options[key] for key in given} == given
    assert "lr" not in describe_choices(options, given).replace("head-lr", "")


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].default_rounds is None])
def test_every_method_gets_the_same_number_of_steps(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 200)
    config = RunConfig.from_mapping(with_effort({"data": str(folder), "hold_out": "c", "method": name}))
    schedule = make_method(name, config.settings).training_schedule(
        rounds=config.rounds, local_epochs=config.local_epochs, batches_per_epoch=config.batches_per_epoch
    )
    assert config.batches_per_epoch is not None
    assert sum(epochs * (batches or 0) for epochs, batches in schedule) == (
        config.rounds * config.local_epochs * config.batches_per_epoch
    )


def test_small_photographs_are_enlarged(tmp_path: Path) -> None:
    """Rates and pretrained weights are for the size of the effort: at 64 pixels training can get stuck."""
    options = with_effort({"data": str(make_folder(tmp_path / "photos", 64)), "hold_out": "c"})
    assert options["image_size"] == EFFORTS["standard"].image_size


def test_held_out_images_do_not_decide_whether_these_are_photographs(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos", 96)
    for path in (folder / "c").rglob("*.png"):
        Image.new("RGB", (28, 28)).save(path)
    assert with_effort({"data": str(folder), "hold_out": "c"})["effort"] == "standard"
    assert with_effort({"data": str(folder), "hold_out": ("a", "b")})["effort"] == "none"


@pytest.mark.parametrize("source", ["tiny", "digits", "arrays", "table"])
def test_other_data_keeps_the_plain_defaults(source: str, tmp_path: Path) -> None:
    data = None
    given = {"data": "rotated-digits", "hold_out": "75"}
    if source == "tiny":
        given = {"data": str(make_folder(tmp_path / "tiny", 20)), "hold_out": "c"}
    elif source == "arrays":
        data = from_arrays(np.zeros((4, 28, 28), np.uint8), [0, 1, 0, 1], ["a", "a", "b", "b"])
    elif source == "table":
        given["data"] = str(tmp_path / "table.csv")
        (tmp_path / "table.csv").write_text("domain,x,target\na,1,0\nb,2,1\n")
    assert with_effort(given, data=data) == {**given, "effort": "none"}
    assert describe_choices(with_effort(given, data=data), given) == ""


def test_closed_forms_get_one_round_and_no_training_options(tmp_path: Path) -> None:
    photos = {"data": str(make_folder(tmp_path / "photos", 200)), "hold_out": "c", "method": "ridge"}
    options = with_effort(photos)
    assert options["rounds"] == 1 and options["weights"] == "auto" and "lr" not in options
    digits = with_effort({"data": "rotated-digits", "hold_out": "75", "method": "ridge"})
    assert digits["rounds"] == 1 and "weights" not in digits


def test_unknown_effort_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="quick"):
        with_effort({"data": "rotated-digits", "hold_out": "75", "effort": "quik"})


def test_the_default_batch_size_fits_the_smallest_client() -> None:
    sites = ["a"] * 30 + ["b"] * 20 + ["c"] * 10
    data = from_arrays(np.zeros((60, 8, 8, 3), dtype=np.uint8), np.arange(60) % 2, sites)
    setup = prepare_run(RunConfig(data="few", hold_out=("c",), model="lenet-1"), data=data)
    smallest = int(setup.experiment.federation.train_sizes.min())
    assert setup.config.batch_size == smallest < RunConfig.batch_size
    assert any(f"batch size {smallest} in place of 32" in note for note in setup.notes)
    with pytest.raises(UsageError, match=rf"batch size 31 .* use --batch-size {smallest} or less"):
        prepare_run(RunConfig(data="few", hold_out=("c",), model="lenet-1", batch_size=31), data=data)
