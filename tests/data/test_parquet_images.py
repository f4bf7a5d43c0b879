"""Parquet shards as the hub stores them: labels by name, images as a stream, damage in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from made_sets import CLASSES, DOMAINS, png, rows, write_hub_parquet
from unseen.data import DataRequest, load_data
from unseen.data.formats import find_format
from unseen.data.images.parquet_images import ParquetImagesFormat
from unseen.data.sources import load_site
from unseen.data.tables.table_loader import TableFormat
from unseen.data.validate import check_data, check_site
from unseen.errors import UnseenError, UsageError


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hub_parquet(tmp_path_factory.mktemp("hub") / "pacs")


def write_shard(path: Path, **columns: list[object]) -> Path:
    """A shard with one image per value of the first column and, in its schema, no names of classes."""
    count = len(next(iter(columns.values())))
    images = [{"bytes": png(row["pixels"]), "path": "x.png"} for row in rows()[:count]]
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"image": images, **columns}), path)
    return path


def test_pixels_labels_and_domains_are_those_of_every_row_of_every_shard(hub: Path) -> None:
    data = load_data(DataRequest(str(hub), image_size=20))
    expected = rows()
    np.testing.assert_array_equal(data.inputs, np.stack([row["pixels"] for row in expected]))
    assert data.domains == DOMAINS
    assert data.classes == CLASSES, "class names are in the schema; one without images is none"
    assert [data.classes[number] for number in data.targets] == [row["label"] for row in expected]
    assert [data.domains[number] for number in data.domain_of] == [row["domain"] for row in expected]
    assert any("read 2 shards" in note for note in data.notes)


def test_a_single_shard_is_an_image_set_and_a_file_of_numbers_a_table(hub: Path, tmp_path: Path) -> None:
    shard = next(hub.glob("data/*00000-of*.parquet"))
    assert isinstance(find_format(shard), ParquetImagesFormat)
    parquet.write_table(pyarrow.table({"domain": ["a"], "x": [1.0]}), tmp_path / "numbers.parquet")
    assert isinstance(find_format(tmp_path / "numbers.parquet"), TableFormat)


def test_groups_are_a_column_and_the_check_advises_it(hub: Path) -> None:
    assert any("--group-column patient" in warning for warning in check_data(DataRequest(str(hub))).warnings)
    request = DataRequest(str(hub), group_column="patient")
    assert not any("--group-column" in warning for warning in check_data(request).warnings)
    assert load_data(request).repeats_groups


def test_a_site_reads_its_own_domain_or_a_set_without_domains(hub: Path, tmp_path: Path) -> None:
    whole = load_data(DataRequest(str(hub), image_size=20, group_column="patient"))
    mine = load_site("photo", DataRequest(str(hub), image_size=20, group_column="patient"))
    np.testing.assert_array_equal(mine.inputs, whole.inputs[whole.indices("photo")])
    np.testing.assert_array_equal(mine.split_group_of, whole.split_group_of[whole.indices("photo")])
    assert mine.classes == CLASSES
    path = write_shard(tmp_path / "own" / "0.parquet", label=["b", "c", "b"])
    own = load_site("anything", DataRequest(str(path.parent)))
    assert (own.classes, own.targets.tolist()) == (("b", "c"), [0, 1, 0])
    assert check_site("anything", DataRequest(str(path.parent))).total == 3


def test_a_second_start_decodes_nothing_and_a_changed_shard_all(hub: Path) -> None:
    heard: list[str] = []
    request = DataRequest(str(hub), image_size=8, progress=lambda what, *_: heard.append(what))
    first = load_data(request)
    assert heard
    heard.clear()
    second = load_data(request)
    assert not heard and isinstance(second.inputs, np.memmap)
    assert second.fingerprint == first.fingerprint
    shard = next(hub.glob("data/*1-of*.parquet"))
    shard.touch()
    load_data(request)
    assert heard


def refusal(path: Path, **options: str) -> str:
    with pytest.raises(UnseenError) as refused:
        load_data(DataRequest(str(path), **options))
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_wrong_columns_are_refused_with_those_there_are(hub: Path) -> None:
    assert "unknown column of pacs (--domain-column): 'style'" in refusal(hub, domain_column="style")
    assert "unknown column of pacs (--target): 'lable'. Did you mean 'label'?" in refusal(
        hub, target_column="lable"
    )
    assert "(--image-column): 'img'. Did you mean 'image'?" in refusal(hub, image_column="img")
    assert "holds string values, expected bytes" in refusal(hub, image_column="domain")


def test_shards_that_are_damaged_or_differ_are_named(hub: Path, tmp_path: Path) -> None:
    whole = next(hub.glob("data/*0-of*.parquet")).read_bytes()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.parquet").write_bytes(whole[:-200])
    assert "a.parquet: damaged or incomplete" in refusal(tmp_path / "cut")
    middle = bytearray(whole)
    middle[2000:6000] = bytes(4000)
    (tmp_path / "middle").mkdir()
    (tmp_path / "middle" / "a.parquet").write_bytes(middle)
    assert "a.parquet" in refusal(tmp_path / "middle", domain_column="domain")
    write_shard(tmp_path / "two" / "a.parquet", label=["x", "y"], domain=["a", "b"])
    write_shard(tmp_path / "two" / "b.parquet", label=["x", "y"])
    assert "b.parquet: column 'domain' of a.parquet is missing here" in refusal(tmp_path / "two")
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "two" / "a.parquet")
    assert "no image column among x" in refusal(tmp_path / "two")


def test_rows_without_an_image_or_a_label(tmp_path: Path) -> None:
    names = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}}}
    images = [{"bytes": png(row["pixels"]), "path": None} for row in rows()[:6]]
    images[4] = {"bytes": None, "path": None}
    table = pyarrow.table({"image": images, "label": [0, 1, 0, 1, 0, -1], "domain": list("aabbab")})
    table = table.replace_schema_metadata({"huggingface": json.dumps(names)})
    parquet.write_table(table, tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    assert "unreadable image x.parquet row 5 (no image here)" in refusal(path)
    data = load_data(DataRequest(str(path), skip_unreadable=True))
    assert data.classes == ("cat", "dog") and len(data) == 4
    assert any("1 without a usable 'label'" in note for note in data.notes)
    outside = pyarrow.table({"image": images[:2], "label": [0, 7], "domain": ["a", "b"]})
    parquet.write_table(outside.replace_schema_metadata(table.schema.metadata), path)
    assert "holds the label 7, but the schema names 2 classes" in refusal(path)


def test_shards_of_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    for split in ("train", "test"):
        cells = [{"bytes": png(row["pixels"]), "path": None} for row in rows()[:4]]
        cells[1] = {"bytes": b"no image", "path": None}
        table = {"image": cells, "label": list("xyxy"), "domain": list("aabb")}
        (tmp_path / "set" / split).mkdir(parents=True)
        parquet.write_table(pyarrow.table(table), tmp_path / "set" / split / "0000.parquet")
    found = check_data(DataRequest(str(tmp_path / "set")))
    assert set(found.unreadable) == {"test/0000.parquet row 2", "train/0000.parquet row 2"}
    assert len(load_data(DataRequest(str(tmp_path / "set"), skip_unreadable=True))) == 6


def test_several_image_columns_need_a_name(tmp_path: Path) -> None:
    cells = [{"bytes": png(row["pixels"]), "path": None} for row in rows()[:4]]
    table = {"left": cells, "right": cells[::-1], "label": list("xyxy"), "domain": list("aabb")}
    parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
    assert "several image columns (left, right)" in refusal(tmp_path / "x.parquet")
    data = load_data(DataRequest(str(tmp_path / "x.parquet"), image_column="right", image_size=20))
    np.testing.assert_array_equal(data.inputs[0], rows()[3]["pixels"])


def test_copies_in_two_domains_are_found(tmp_path: Path) -> None:
    cells = [{"bytes": png(row["pixels"]), "path": None} for row in rows()[:4]]
    cells[2] = cells[0]
    table = {"image": cells, "label": list("xyxy"), "domain": list("aabb")}
    parquet.write_table(pyarrow.table(table), tmp_path / "x.parquet")
    warnings = check_data(DataRequest(str(tmp_path / "x.parquet"))).warnings
    assert any("x.parquet row 1 and x.parquet row 3: the held-out domain leaks" in text for text in warnings)


PEAK = """
import re, sys
from pathlib import Path
def peak():
    # getrusage would count the parent's memory before exec as well
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
from unseen.data import DataRequest, load_data
load_data(DataRequest(sys.argv[1], image_size=8))
before = peak()
data = load_data(DataRequest(sys.argv[2], image_size=8))
print(len(data), peak() - before)
"""


def write_large(path: Path, count: int, side: int = 256) -> int:
    """Write uncompressed images into row groups of 4 MB; return the file's size."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 255, side * side * 3, dtype=np.uint8).tobytes()
    header = b"P6 %d %d 255\n" % (side, side)
    cells = [
        {"bytes": header + number.to_bytes(4, "big") + pixels[4:], "path": None} for number in range(count)
    ]
    columns = {
        "image": cells,
        "label": [number % 2 for number in range(count)],
        "domain": ["ab"[number % 4 // 2] for number in range(count)],
    }
    parquet.write_table(
        pyarrow.table(columns), path, row_group_size=20, compression="none", use_dictionary=["domain"]
    )
    return path.stat().st_size


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of a process")
def test_memory_does_not_grow_with_the_set(tmp_path: Path) -> None:
    """A set of 80 MB is read with far less additional memory than its size."""
    write_large(tmp_path / "small.parquet", 40)
    size = write_large(tmp_path / "large.parquet", 400)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "small.parquet"), str(tmp_path / "large.parquet")],
        capture_output=True,
        text=True,
        check=True,
    )
    count, grown = map(int, done.stdout.split())
    assert count == 400
    assert grown * 1024 < size / 4, f"{grown} KiB more for {size} bytes"


def test_without_the_column_of_the_user_the_usual_target_is_not_taken(hub: Path) -> None:
    with pytest.raises(UsageError, match="target"):
        load_data(DataRequest(str(hub), target_column="labels"))
