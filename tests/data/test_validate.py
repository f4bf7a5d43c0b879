"""The check reports what the loader would stumble over, and what may spoil a result."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data import DataRequest
from unseen.data.images.folders import check_folder, load_folder
from unseen.data.validate import check_data
from unseen.errors import UnseenError


def paint(folder: Path) -> None:
    """Give every file its own content, so that no two are copies."""
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        Image.fromarray(np.full((6, 6, 3), number, np.uint8)).save(path)


@pytest.fixture
def folder(make_images) -> Path:
    made = make_images(count=3)
    paint(made)
    return made


def test_a_sound_folder(folder: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    found = check_folder(folder, progress=lambda *what: heard.append(what))
    assert found.ok
    assert found.total == 12
    assert found.counts == {"photo": {"cat": 3, "dog": 3}, "sketch": {"cat": 3, "dog": 3}}
    assert (found.problem, found.unreadable, found.unusual, found.warnings, found.notes) == (
        "",
        {},
        {},
        (),
        (),
    )
    assert heard == [("checking images", 12, 12)]


def test_unreadable_and_unusual_files_are_all_listed(folder: Path) -> None:
    jpeg = folder / "photo" / "cat" / "cut.jpg"
    Image.effect_noise((64, 64), 80).save(jpeg)
    jpeg.write_bytes(jpeg.read_bytes()[:500])
    (folder / "sketch" / "dog" / "text.jpg").write_text("no image")
    Image.new("L", (9, 9)).save(folder / "sketch" / "dog" / "grey.png")
    Image.new("CMYK", (9, 9)).save(folder / "sketch" / "dog" / "print.jpg")
    Image.fromarray(np.zeros((9, 9), np.uint16)).save(folder / "sketch" / "dog" / "deep.png")
    found = check_data(DataRequest(str(folder)))
    assert not found.ok
    assert set(found.unreadable) == {"photo/cat/cut.jpg", "sketch/dog/text.jpg"}
    assert found.unusual == {
        "sketch/dog/grey.png": "grey",
        "sketch/dog/print.jpg": "CMYK",
        "sketch/dog/deep.png": "16-bit grey",
    }
    with pytest.raises(UnseenError, match="cut"):
        load_folder(folder, DataRequest(str(folder)))


def test_warnings(make_images) -> None:
    folder = make_images(("photo", "sketch"), ("cat",), count=1)
    make_images(("photo",), ("dog", "Dog"), count=50)
    paint(folder)
    shutil.copy(folder / "photo" / "cat" / "0.png", folder / "sketch" / "cat" / "copy.png")
    (folder / "sketch" / "dog").mkdir()
    found = check_folder(folder)
    text = "\n".join(found.warnings)
    assert "class dog is in domain photo only" in text
    assert "Dog and dog differ in upper and lower case" in text
    assert "domains are very unbalanced: photo has 101 samples, sketch 2" in text
    assert "1 images are in more than one domain" in text
    assert "class cat is" not in text
    assert "sketch/dog empty" in found.notes[0]
    assert found.problem == ""


def test_what_training_would_refuse_is_the_problem(make_images, tmp_path: Path) -> None:
    assert "one domain only" in check_folder(make_images(("photo",))).problem
    (tmp_path / "bare").mkdir()
    nothing = check_folder(tmp_path / "bare")
    assert "no images" in nothing.problem
    assert not nothing.ok
    assert nothing.total == 0
    with pytest.raises(UnseenError, match="no such folder"):
        check_folder(tmp_path / "nowhere")


def test_named_sets_are_loaded_and_counted() -> None:
    found = check_data(DataRequest("rotated-digits"))
    assert found.ok
    assert found.total == 1797
    assert set(found.counts) == {"0", "15", "30", "45", "60", "75"}


def test_everything_can_be_written_as_json(folder: Path) -> None:
    (folder / "photo" / "cat" / "bad.jpg").write_text("no image")
    plain = json.loads(json.dumps(check_folder(folder).to_dict()))
    assert plain["ok"] is False
    assert list(plain["unreadable"]) == ["photo/cat/bad.jpg"]
    assert plain["counts"]["photo"]["cat"] == 4


def test_tables_are_loaded_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    rows = [f"{site},{number / 7},{number * 0.31 + 0.1}" for site in "ab" for number in range(30)]
    path.write_text("\n".join(["domain,x,target", *rows]))
    found = check_data(DataRequest(str(path), task="regression"))
    assert found.ok
    assert found.counts == {"a": {"rows": 30}, "b": {"rows": 30}}
