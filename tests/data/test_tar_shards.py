"""WebDataset shards: samples are joined by key, labels come from .cls and .json, damage is one line."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from made_sets import DOMAINS, png, rows, write_webdataset
from unseen.data import DataRequest, load_data
from unseen.data.sources import load_site
from unseen.data.validate import check_data
from unseen.errors import UnseenError


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_webdataset(tmp_path_factory.mktemp("tar") / "pets")


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def refusal(path: Path, **options: str) -> str:
    with pytest.raises(UnseenError) as refused:
        load_data(DataRequest(str(path), **options))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_every_sample_of_every_shard(shards: Path) -> None:
    data = load_data(DataRequest(str(shards), image_size=20, group_column="patient"))
    expected = rows()
    assert len(list(shards.glob("*.tar"))) == 3
    np.testing.assert_array_equal(data.inputs, np.stack([row["pixels"] for row in expected]))
    assert (data.domains, data.classes, data.repeats_groups) == (DOMAINS, ("0", "1"), True)
    assert data.targets.tolist() == [int(row["label"] == "elephant") for row in expected]
    mine = load_site("art", DataRequest(str(shards), image_size=20))
    np.testing.assert_array_equal(mine.inputs, data.inputs[data.indices("art")])


def test_shards_may_name_the_domain_and_text_fields_the_class(tmp_path: Path) -> None:
    for domain in ("photo", "sketch"):
        members: dict[str, bytes] = {}
        for number, row in enumerate(rows()[:4]):
            members |= {
                f"./{number}.png": png(row["pixels"]),
                f"./{number}.label.txt": b"cat\n" if number % 2 else b"dog",
            }
        write_tar(tmp_path / "set" / f"{domain}-000000.tar", members)
    request = DataRequest(str(tmp_path / "set"), domain_column="__url__")
    data = load_data(request)
    assert (data.domains, data.classes) == (("photo", "sketch"), ("cat", "dog"))
    assert any("the held-out domain leaks" in text for text in check_data(request).warnings)


def test_bad_shards_are_one_clear_line(shards: Path, tmp_path: Path) -> None:
    whole = next(shards.glob("*.tar")).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:5000])
    assert "cut.tar: damaged or incomplete" in refusal(tmp_path / "cut.tar")
    (tmp_path / "words.tar").write_bytes(b"no archive" * 100)
    assert "words.tar: damaged or incomplete" in refusal(tmp_path / "words.tar")
    image = png(rows()[0]["pixels"])
    assert "is no JSON" in refusal(write_tar(tmp_path / "json.tar", {"a.png": image, "a.json": b"{"}))
    assert "no sample has an image" in refusal(write_tar(tmp_path / "none.tar", {"a.cls": b"1"}))
    assert "images but no labels" in refusal(write_tar(tmp_path / "bare.tar", {"a.png": image}))
    assert "unknown column of pets (--domain-column): 'site'" in refusal(shards, domain_column="site")


def test_a_member_of_negative_size_does_not_keep_the_reader_in_circles(tmp_path: Path) -> None:
    """N4: of Python's own tarfile; the end of such a member is its beginning."""
    header = bytearray(tarfile.TarInfo("a.png").tobuf(tarfile.GNU_FORMAT)[:512])
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = write_tar(tmp_path / "circle.tar", {"b.png": png(rows()[0]["pixels"]), "b.cls": b"1"})
    path.write_bytes(bytes(header) + path.read_bytes())
    assert "circle.tar: damaged or incomplete (a member has a negative size)" in refusal(path)


@pytest.mark.parametrize("field", [b"[" * 500_000, b'{"label": 1' + b"0" * 6000 + b"}"])
def test_a_field_that_no_reader_takes_is_one_clear_line(tmp_path: Path, field: bytes) -> None:
    """N4: nested too deep for Python's reader, or with too many digits."""
    path = write_tar(tmp_path / "a.tar", {"a.png": png(rows()[0]["pixels"]), "a.json": field})
    assert "member a.json is no JSON" in refusal(path)


@pytest.mark.parametrize("name", ["cls", "json"])
def test_numbers_beyond_64_bits_are_texts(tmp_path: Path, name: str) -> None:
    """N4: they ended in a traceback."""
    members = {}
    for number in range(8):
        members[f"k{number}.png"] = png(rows()[number]["pixels"])
        large = b"9" * 40 if number % 2 else b"8" * 40
        members[f"k{number}.{name}"] = large if name == "cls" else b'{"cls": %s}' % large
        members[f"k{number}.site"] = b"ab"[number // 4 :][:1]
    path = write_tar(tmp_path / "a.tar", members)
    data = load_data(DataRequest(str(path), domain_column="site", task="classification"))
    assert data.classes == ("8" * 40, "9" * 40)


def test_an_undecodable_image_is_named_by_shard_and_key(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number, row in enumerate(rows()[:8]):
        image = b"no image" if number == 3 else png(row["pixels"])
        members |= {
            f"k{number}.png": image,
            f"k{number}.json": b'{"label": "%d", "domain": "%d"}' % (number % 2, number // 4),
        }
    path = write_tar(tmp_path / "a.tar", members)
    assert "unreadable image a.tar k3 (not an image" in refusal(path)
    assert check_data(DataRequest(str(path))).unreadable.keys() == {"a.tar k3"}
    assert len(load_data(DataRequest(str(path), skip_unreadable=True))) == 7
