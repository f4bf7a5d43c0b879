"""Folders domain/class/image: what is read, what is noted, what is refused and how."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data import DataRequest, load_data
from unseen.data.images.folders import load_folder
from unseen.errors import UnseenError


def load(path: Path, **options: object):
    return load_folder(path, DataRequest(str(path), **options))


def message(path: Path, **options: object) -> str:
    with pytest.raises(UnseenError) as caught:
        load(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_every_picture_arrives_in_its_domain_and_class(make_images) -> None:
    data = load(make_images(count=4))
    assert data.domains == ("photo", "sketch")
    assert data.classes == ("cat", "dog")
    assert data.inputs.shape == (16, 64, 64, 3)
    assert data.inputs.dtype == np.uint8
    assert data.class_counts() == {"photo": {"cat": 4, "dog": 4}, "sketch": {"cat": 4, "dog": 4}}
    np.testing.assert_array_equal(data.inputs[:, 30, 30, 0], 40 * data.domain_of + 20)
    np.testing.assert_array_equal(data.inputs[:, 30, 30, 1], 30 * data.targets + 10)
    assert data.notes == ()
    assert data.name == "pictures"


def test_the_general_loader_finds_folders_and_honours_the_size(make_images) -> None:
    data = load_data(DataRequest(str(make_images()), image_size=12))
    assert data.input_shape == (3, 12, 12)


def test_classes_are_the_union_over_domains(make_images) -> None:
    make_images(("photo",), ("cat", "dog"))
    data = load(make_images(("sketch",), ("zebra", "cat")))
    assert data.classes == ("cat", "dog", "zebra")
    assert data.class_counts()["photo"] == {"cat": 3, "dog": 3, "zebra": 0}


def test_hidden_files_and_upper_case_suffixes(make_images) -> None:
    folder = make_images()
    for hidden in (".git/photo/x", "photo/.thumbs", "__MACOSX/photo"):
        (folder / hidden).mkdir(parents=True)
    (folder / "photo" / "cat" / "._0.png").write_bytes(b"resource fork")
    shutil.move(folder / "photo" / "cat" / "0.png", folder / "photo" / "cat" / "0.PNG")
    data = load(folder)
    assert len(data) == 12
    assert data.notes == ()


def test_things_left_out_are_noted(make_images) -> None:
    folder = make_images()
    (folder / "photo" / "cat" / "readme.txt").write_text("notes")
    (folder / "photo" / "cat" / "more").mkdir()
    (folder / "docs").mkdir()
    (folder / "sketch" / "bird").mkdir()
    (folder / "photo" / "bird").mkdir()
    shutil.copy(folder / "photo/cat/0.png", folder / "photo/bird/0.png")
    shutil.copy(folder / "photo/cat/0.png", folder / "photo/preview.png")
    data = load(folder)
    notes = "\n".join(data.notes)
    for seen in ("sketch/bird empty", "docs", "photo/preview.png", "photo/cat/more", "photo/cat/readme.txt"):
        assert seen in notes
    assert data.domains == ("photo", "sketch")
    assert len(data) == 13


def test_missing_folder(tmp_path: Path) -> None:
    assert "no such folder" in message(tmp_path / "nowhere")


def test_no_images(tmp_path: Path) -> None:
    (tmp_path / "photo" / "cat").mkdir(parents=True)
    assert "no images" in message(tmp_path)


def test_flat_layouts_explain_what_is_expected(tmp_path: Path) -> None:
    for place in (tmp_path / "one", tmp_path / "two" / "cat"):
        place.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(place / "0.png")
    assert "FOLDER/DOMAIN/CLASS/IMAGE" in message(tmp_path / "one")
    assert "cat/0.png" in message(tmp_path / "two")


def test_one_domain_only(make_images) -> None:
    assert "one domain only (photo)" in message(make_images(("photo",)))


def test_one_class_only(make_images) -> None:
    assert "two classes" in message(make_images(classes=("cat",)))


def test_a_class_without_any_image_is_named(make_images) -> None:
    folder = make_images()
    (folder / "photo" / "bird").mkdir()
    assert "photo/bird is empty" in message(folder)


@pytest.fixture
def damaged(make_images) -> Path:
    folder = make_images(count=5)
    jpeg = folder / "photo" / "dog" / "9.jpg"
    Image.effect_noise((64, 64), 80).save(jpeg)
    jpeg.write_bytes(jpeg.read_bytes()[:500])
    (folder / "sketch" / "cat" / "1.jpg").write_text("no image")
    return folder


def test_unreadable_files_stop_the_load_by_name(damaged: Path) -> None:
    for _ in range(2):  # the second time the answer comes from the cache
        text = message(damaged)
        assert "photo/dog/9.jpg" in text
        assert "and 1 more" in text
        assert f"unseen data check {damaged}" in text
        assert "--skip-unreadable" in text


def test_unreadable_files_can_be_left_out(damaged: Path) -> None:
    for _ in range(2):
        data = load(damaged, skip_unreadable=True)
        assert len(data) == 20
        np.testing.assert_array_equal(data.inputs[:, 9, 9, 0], 40 * data.domain_of + 20)
        np.testing.assert_array_equal(data.inputs[:, 9, 9, 1], 30 * data.targets + 10)
        assert any("photo/dog/9.jpg" in note for note in data.notes)


def test_leaving_out_must_leave_something(make_images) -> None:
    folder = make_images(("photo", "sketch", "art"), count=1)
    for label in ("cat", "dog"):
        (folder / "sketch" / label / "0.png").write_text("no image")
    assert "no readable image is left of sketch" in message(folder, skip_unreadable=True)
    for path in folder.rglob("*.png"):
        path.write_text("no image")
    assert "no readable image is left of art" in message(folder, skip_unreadable=True)


def test_a_link_to_nowhere_is_unreadable(make_images) -> None:
    folder = make_images()
    (folder / "photo" / "cat" / "9.png").symlink_to(folder / "gone.png")
    assert "photo/cat/9.png" in message(folder)


def test_odd_file_names(make_images) -> None:
    folder = make_images()
    raw = bytes(folder / "photo" / "cat") + b"/\xff caf\xc3\xa9.png"
    Path(raw.decode("utf-8", "surrogateescape")).write_text("no image")
    assert len(load(folder, skip_unreadable=True)) == 12


def test_the_fingerprint_is_of_the_content_alone(make_images) -> None:
    first, second = make_images(folder="one"), make_images(folder="two")
    assert load(first).fingerprint == load(second).fingerprint
    assert load(first, image_size=32).fingerprint != load(first).fingerprint
    Image.new("RGB", (20, 20), "white").save(second / "photo" / "cat" / "0.png")
    assert load(first).fingerprint != load(second).fingerprint
    third = make_images(folder="three")
    (third / "photo" / "cat").rename(third / "photo" / "moved")
    assert load(first).fingerprint != load(third).fingerprint


def test_progress_counts_to_the_end(make_images) -> None:
    heard: list[tuple[str, int, int]] = []
    load(make_images(count=30), progress=lambda *what: heard.append(what))
    assert heard[-1] == ("decoding images", 120, 120)
    assert heard[0] == ("decoding images", 100, 120)
