"""The cache of decoded images: used when nothing changed, never when something did, never half written."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data import DataRequest, DataSet
from unseen.data.images.folders import load_folder
from unseen.fileio import cache_folder


class Loader:
    """Loads a folder and tells whether images were decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, size: int = 16) -> tuple[DataSet, bool]:
        heard: list[str] = []
        request = DataRequest("x", image_size=size, progress=lambda what, *_: heard.append(what))
        return load_folder(self.folder, request), bool(heard)


@pytest.fixture
def load(make_images) -> Loader:
    return Loader(make_images())


def pixels(folder: Path) -> list[Path]:
    return sorted(folder.glob("[!.]*.npy"))


def test_the_second_start_decodes_nothing_and_maps_the_file(load: Loader, image_cache: Path) -> None:
    first, decoded = load()
    assert decoded
    second, decoded = load()
    assert not decoded
    assert isinstance(second.inputs, np.memmap)
    np.testing.assert_array_equal(first.inputs, second.inputs)
    assert first.fingerprint == second.fingerprint
    assert second.notes == ()
    assert len(pixels(image_cache)) == 1
    np.testing.assert_array_equal(np.load(pixels(image_cache)[0]), second.inputs)


def change(folder: Path) -> None:
    path = folder / "photo" / "cat" / "0.png"
    stamp = path.stat().st_mtime_ns
    Image.new("RGB", (20, 20), "white").save(path)
    os.utime(path, ns=(stamp + 1, stamp + 1))


def add(folder: Path) -> None:
    Image.new("RGB", (20, 20), "white").save(folder / "photo" / "cat" / "new.png")


def remove(folder: Path) -> None:
    (folder / "photo" / "cat" / "0.png").unlink()


def rename(folder: Path) -> None:
    (folder / "photo" / "cat" / "0.png").rename(folder / "photo" / "dog" / "moved.png")


@pytest.mark.parametrize("act", [change, add, remove, rename])
def test_a_changed_folder_is_decoded_anew_and_replaces_the_old_entry(
    load: Loader, image_cache: Path, act
) -> None:
    before, _ = load()
    old = pixels(image_cache)
    act(load.folder)
    after, decoded = load()
    assert decoded
    assert after.fingerprint != before.fingerprint
    assert len(pixels(image_cache)) == 1
    assert pixels(image_cache) != old
    assert len(list(image_cache.glob("*.json"))) == 1
    assert len(before.inputs) == len(np.array(before.inputs))  # the old map stays readable for who holds it


def test_new_content_of_the_same_length_is_seen(load: Loader) -> None:
    path = load.folder / "photo" / "cat" / "same.bmp"
    Image.new("RGB", (20, 20), "white").save(path)
    before, stamp, length = load()[0], path.stat().st_mtime_ns, path.stat().st_size
    Image.new("RGB", (20, 20), "black").save(path)
    os.utime(path, ns=(stamp + 1, stamp + 1))
    assert path.stat().st_size == length
    assert load()[0].fingerprint != before.fingerprint


def test_sizes_and_folders_do_not_replace_each_other(load: Loader, make_images, image_cache: Path) -> None:
    load(16)
    load(20)
    Loader(make_images(folder="other"))(16)
    assert len(pixels(image_cache)) == 3
    assert not load(16)[1]
    assert not load(20)[1]


@pytest.mark.parametrize(
    "damage", ["no description", "half a description", "half the pixels", "no pixels", "list"]
)
def test_damaged_entries_are_not_used(load: Loader, image_cache: Path, damage: str) -> None:
    whole, _ = load()
    expected = np.array(whole.inputs)
    entry = pixels(image_cache)[0]
    description = entry.with_suffix(".json")
    if damage == "no description":
        description.unlink()
    elif damage == "half a description":
        description.write_text(description.read_text()[:20])
    elif damage == "list":
        description.write_text("[]")
    elif damage == "half the pixels":
        entry.write_bytes(entry.read_bytes()[:2000])
    else:
        entry.unlink()
    again, decoded = load()
    assert decoded
    np.testing.assert_array_equal(again.inputs, expected)


def test_a_process_killed_while_writing_leaves_nothing_that_is_used(load: Loader, image_cache: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from unseen.data import DataRequest;"
        "from unseen.data.images.folders import load_folder;"
        "die = lambda *what: os.kill(os.getpid(), signal.SIGKILL);"
        "load_folder(Path(sys.argv[1]), DataRequest('x', image_size=16, progress=die))"
    )
    done = subprocess.run([sys.executable, "-c", script, str(load.folder)], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    leftovers = list(image_cache.glob(".*.npy"))
    assert leftovers
    assert not pixels(image_cache)
    data, decoded = load()
    assert decoded
    assert len(data) == 12
    assert leftovers[0].exists()  # it might belong to a process at work
    os.utime(leftovers[0], (time.time() - 2 * 86400,) * 2)
    change(load.folder)
    load()
    assert not leftovers[0].exists()


def test_an_unusable_cache_folder_means_memory_and_a_note(
    load: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, _ = load()
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        data, decoded = load()
        assert decoded
        assert not isinstance(data.inputs, np.memmap)
        assert "memory" in data.notes[0]
        np.testing.assert_array_equal(data.inputs, cached.inputs)
        assert data.fingerprint == cached.fingerprint


def test_a_disk_that_fills_up_means_memory_and_a_note(load: Loader, image_cache: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        data, _ = load(64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(data) == 12
    assert "memory" in data.notes[0]
    assert "File too large" in data.notes[0]
    assert not list(image_cache.iterdir())
    assert load(64)[0].fingerprint == data.fingerprint


def test_a_file_that_was_repaired_in_place_is_taken_up(make_images) -> None:
    folder = make_images()
    path = folder / "photo" / "cat" / "0.png"
    good = path.read_bytes()
    path.write_bytes(b"x" * len(good))
    stamp = path.stat().st_mtime_ns
    request = DataRequest("x", skip_unreadable=True)
    assert len(load_folder(folder, request)) == 11
    path.write_bytes(good)
    os.utime(path, ns=(stamp, stamp))
    assert len(load_folder(folder, request)) == 12


def test_where_the_cache_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "image-cache"
    monkeypatch.delenv("UNSEEN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "unseen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "unseen"


def test_damaged_pixels_are_decoded_again_and_it_is_said(load: Loader, image_cache: Path) -> None:
    """R3: flipped bytes in the cache changed the loss under the same run id and fingerprint."""
    first, _ = load()
    whole = np.array(first.inputs)
    damaged = bytearray(pixels(image_cache)[0].read_bytes())
    damaged[-20:-10] = bytes(byte ^ 0x55 for byte in damaged[-20:-10])
    pixels(image_cache)[0].write_bytes(damaged)
    second, decoded = load()
    assert decoded and any("damaged" in note for note in second.notes)
    np.testing.assert_array_equal(whole, second.inputs)
    assert not load()[1]


def test_an_entry_of_an_older_version_is_compared_with_its_digest_and_gets_checksums(
    load: Loader, image_cache: Path
) -> None:
    load()
    description = pixels(image_cache)[0].with_suffix(".json")
    facts = json.loads(description.read_text())
    old = {key: facts[key] for key in ("folder", "size", "digest", "unreadable")}
    description.write_text(json.dumps(old))
    assert not load()[1] and json.loads(description.read_text()) == facts
    description.write_text(json.dumps(old))
    damaged = bytearray(pixels(image_cache)[0].read_bytes())
    damaged[-1] ^= 1
    pixels(image_cache)[0].write_bytes(damaged)
    assert load()[1], "the digest was in the description before, but was not compared"
