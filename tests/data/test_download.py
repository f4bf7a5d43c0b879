"""Downloads from a server on this machine: whole, broken off, resumed, damaged, without room."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from file_server import FileServer, serving
from unseen.data import DataRequest, list_sources, load_data
from unseen.data.benchmarks.digits import MNIST, SVHN, USPS, mnist_arrays, usps_arrays
from unseen.data.download import Acquisition, Download, RemoteFile, fetch_file, get_data
from unseen.data.sources import SOURCES, Source
from unseen.errors import UnseenError, UsageError

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 700_000, dtype=np.uint8))
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("UNSEEN_OFFLINE")
    with serving() as running:
        running.files["file.bin"] = CONTENT
        yield running


@pytest.fixture
def remote(server: FileServer) -> RemoteFile:
    return RemoteFile("file.bin", (server.url("file.bin"),), MD5)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "below" / "file.bin"


def refused(remote: RemoteFile, target: Path) -> str:
    with pytest.raises(UnseenError) as caught:
        fetch_file(remote, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def part_of(target: Path) -> Path:
    return target.with_name("file.bin.part")


class TestOneFile:
    def test_it_arrives_whole_with_progress(self, remote, target):
        told: list[tuple[str, int, int]] = []
        assert fetch_file(remote, target, progress=lambda *news: told.append(news)) == target
        assert target.read_bytes() == CONTENT
        assert not part_of(target).exists()
        assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
        assert told[-1] == ("downloading file.bin", len(CONTENT), len(CONTENT))

    def test_what_is_there_is_not_fetched_again(self, remote, target, server):
        fetch_file(remote, target)
        fetch_file(remote, target)
        assert len(server.asked) == 1

    def test_a_broken_connection_leaves_a_part_and_the_next_try_goes_on(self, remote, target, server):
        server.breaks_after = 300_000
        assert "broke off after 300000 of 700000 bytes" in refused(remote, target)
        assert not target.exists()
        assert part_of(target).read_bytes() == CONTENT[:300_000]
        fetch_file(remote, target)
        assert server.asked[-1] == ("/file.bin", "bytes=300000-")
        assert target.read_bytes() == CONTENT
        assert not part_of(target).exists()

    def test_a_server_that_cannot_go_on_starts_again(self, remote, target, server):
        server.breaks_after, server.ranges = 300_000, False
        refused(remote, target)
        fetch_file(remote, target)
        assert target.read_bytes() == CONTENT

    def test_a_part_that_is_already_whole(self, remote, target, server):
        target.parent.mkdir()
        part_of(target).write_bytes(CONTENT)
        assert fetch_file(remote, target).read_bytes() == CONTENT

    @pytest.mark.parametrize("left_over", [b"", b"x" * 5, b"x" * 700_001])
    def test_wrong_content_is_removed(self, left_over, remote, target, server):
        if left_over:
            target.parent.mkdir()
            part_of(target).write_bytes(left_over)
        else:
            server.files["file.bin"] = CONTENT[:-1] + b"?"
        text = refused(remote, target)
        assert MD5 in text
        assert "removed" in text
        assert not target.exists()
        assert not part_of(target).exists()

    def test_ctrl_c_leaves_no_half_file_under_the_final_name(self, remote, target, server):
        def stop(what: str, done: int, total: int) -> None:
            if done > 300_000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fetch_file(remote, target, progress=stop)
        assert not target.exists()
        kept = part_of(target).read_bytes()
        assert kept == CONTENT[: len(kept)]
        assert kept
        fetch_file(remote, target)
        assert server.asked[-1] == ("/file.bin", f"bytes={len(kept)}-")
        assert target.read_bytes() == CONTENT

    def test_a_disk_that_fills_up_while_writing(self, remote, target):
        target.parent.mkdir()
        part_of(target).symlink_to("/dev/full")
        text = refused(remote, target)
        assert "could not write" in text
        assert "No space left" in text
        assert not target.exists()

    def test_a_disk_that_is_too_small_is_told_before(self, remote, target, monkeypatch):
        usage = shutil.disk_usage(target.anchor)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=500_000))
        assert "0 MB free, 1 MB more are needed" in refused(remote, target)
        assert not target.exists()

    def test_a_file_of_the_user_is_not_touched(self, remote, target):
        target.parent.mkdir()
        target.write_bytes(b"mine")
        assert "move it away" in refused(remote, target)
        assert target.read_bytes() == b"mine"

    def test_the_next_address_is_tried(self, remote, target, server):
        both = RemoteFile("file.bin", (server.url("nowhere"), *remote.urls), MD5)
        assert fetch_file(both, target).read_bytes() == CONTENT

    def test_no_such_file_and_no_such_server(self, target, server):
        assert "404" in refused(RemoteFile("file.bin", (server.url("other"),), MD5), target)
        closed = RemoteFile("file.bin", ("http://127.0.0.1:9/file.bin",), MD5)
        assert "Connection refused" in refused(closed, target)

    def test_offline_nothing_is_fetched_but_what_is_there_is_used(self, remote, target, server, monkeypatch):
        fetch_file(remote, target)
        monkeypatch.setenv("UNSEEN_OFFLINE", "1")
        assert fetch_file(remote, target) == target
        assert "UNSEEN_OFFLINE is set" in refused(remote, target.with_name("other"))
        monkeypatch.setenv("UNSEEN_OFFLINE", "0")
        fetch_file(remote, target.with_name("other"))
        assert len(server.asked) == 2

    @pytest.mark.parametrize("digits", [8, 64])
    def test_a_sha256_or_its_first_digits_are_checked(self, digits, target, server):
        known = hashlib.sha256(CONTENT).hexdigest()[:digits]
        good = RemoteFile("file.bin", (server.url("file.bin"),), sha256=known)
        server.files["file.bin"] = CONTENT[:-1] + b"?"
        assert f"expected {known}" in refused(good, target)
        server.files["file.bin"] = CONTENT
        assert fetch_file(good, target).read_bytes() == CONTENT


class TestDigits:
    pictures = np.random.default_rng(1).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)

    def idx(self, array: np.ndarray) -> bytes:
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        return gzip.compress(head + array.tobytes())

    def svm(self, pictures: np.ndarray, labels: np.ndarray) -> bytes:
        rows = [
            f"{label + 1} "
            + " ".join(f"{i}:{2 * int(v) / 255 - 1:.6f}" for i, v in enumerate(picture.flat, start=1))
            for picture, label in zip(pictures, labels, strict=True)
        ]
        return bz2.compress("\n".join(rows).encode())

    def test_mnist_files_become_what_the_loader_reads(self, tmp_path):
        files = {}
        for file in MNIST.files:
            train, images = file.name.startswith("train"), "images" in file.name
            array = self.pictures if images else self.labels
            files[file.name] = tmp_path / file.name
            files[file.name].write_bytes(self.idx(array[:4] if train else array[4:]))
        arrays = mnist_arrays(files)
        np.testing.assert_array_equal(np.concatenate([arrays["train_x"], arrays["test_x"]]), self.pictures)
        np.testing.assert_array_equal(np.concatenate([arrays["train_y"], arrays["test_y"]]), self.labels)

    def test_usps_files_keep_pixels_and_call_one_zero(self, tmp_path):
        small = self.pictures[:, :16, :16]
        files = {}
        for name, rows in (("usps.bz2", slice(0, 4)), ("usps.t.bz2", slice(4, 6))):
            files[name] = tmp_path / name
            files[name].write_bytes(self.svm(small[rows], self.labels[rows]))
        arrays = usps_arrays(files)
        np.testing.assert_array_equal(np.concatenate([arrays["train_x"], arrays["test_x"]]), small)
        assert arrays["train_y"].tolist() == [0, 1, 2, 3]

    def test_a_file_that_is_no_idx_file(self, tmp_path):
        files = {file.name: tmp_path / file.name for file in MNIST.files}
        for path in files.values():
            path.write_bytes(gzip.compress(b"nothing of the kind"))
        assert MNIST.convert is not None
        with pytest.raises(UnseenError, match="cannot be read"):
            MNIST.convert(files, tmp_path / "mnist.npz")
        assert not (tmp_path / "mnist.npz").exists()

    def test_checksums_are_published_ones(self):
        for download in (MNIST, USPS, SVHN):
            assert all(len(file.md5) == 32 and file.urls for file in download.files)
        assert MNIST.free
        assert not SVHN.free
        assert not USPS.free


@pytest.fixture
def made_up(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A named set whose downloads lie on the server: made-up MNIST files, and one under terms."""
    digits = TestDigits()
    contents = {}
    for file in MNIST.files:
        array = digits.pictures if "images" in file.name else digits.labels
        contents[file.name] = digits.idx(array)
    server.files.update(contents)

    def known(name: str, content: bytes) -> RemoteFile:
        return RemoteFile(name, (server.url(name),), hashlib.md5(content).hexdigest())

    free = Download(
        "MNIST",
        licence="free",
        free=True,
        files=tuple(known(name, content) for name, content in contents.items()),
        makes=("digits/mnist.npz",),
        convert=MNIST.convert,
    )
    bound = Download(
        "bound",
        licence="for friends only",
        free=False,
        files=(known("file.bin", CONTENT),),
        makes=("a/file.bin",),
    )
    source = Source(
        load=SOURCES["digits"].load,
        summary="",
        domains="",
        acquisition=Acquisition("mixed", "here", "a/file.bin", downloads=(free, bound)),
    )
    monkeypatch.setitem(SOURCES._entries, "made-up", source)
    return "made-up"


class TestGet:
    def test_free_files_come_and_others_wait_for_consent(self, made_up, tmp_path):
        outcome = get_data(made_up, root=tmp_path)
        assert outcome.downloaded == ["MNIST"]
        assert [download.title for download in outcome.refused] == ["bound"]
        assert sorted(
            path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
        ) == ["digits/mnist.npz"]
        outcome = get_data(made_up, root=tmp_path, accept_terms=True)
        assert outcome.present == ["MNIST"]
        assert outcome.downloaded == ["bound"]
        assert (tmp_path / "a" / "file.bin").read_bytes() == CONTENT

    def test_what_was_got_can_be_loaded(self, made_up, tmp_path):
        get_data(made_up, root=tmp_path)
        shutil.copy(tmp_path / "digits" / "mnist.npz", tmp_path / "digits" / "usps.npz")
        assert len(load_data(DataRequest("digits", root=tmp_path))) == 24

    def test_a_mirror_must_hold_the_very_files(self, server, tmp_path):
        for file in MNIST.files:
            server.files[f"mirror/{file.name}"] = b"something else"
        with pytest.raises(UnseenError, match=MNIST.files[0].md5):
            get_data("rotated-mnist", root=tmp_path, mirror=server.url("mirror"))
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_what_cannot_be_downloaded_is_explained(self, tmp_path):
        outcome = get_data("vlcs", root=tmp_path)
        assert outcome.explained is not None
        assert "DomainBed" in outcome.explained.where
        assert "vlcs/DOMAIN/CLASS" in outcome.explained.put
        (tmp_path / "VLCS" / "LabelMe").mkdir(parents=True)
        there = get_data("vlcs", root=tmp_path)
        assert (there.present, there.explained) == (["vlcs"], None)

    def test_every_set_with_files_says_how_to_come_by_them(self):
        for name, source in list_sources():
            told = source.acquisition
            assert told is None or (told.licence and told.where and told.put), name

    def test_wrong_use(self, tmp_path):
        with pytest.raises(UsageError, match="Did you mean 'vlcs'"):
            get_data("vlsc", root=tmp_path)
        with pytest.raises(UsageError, match="UNSEEN_DATA"):
            get_data("vlcs", root=None)
        with pytest.raises(UsageError, match="not an address"):
            get_data("rotated-mnist", root=tmp_path, mirror="ftp://somewhere")
