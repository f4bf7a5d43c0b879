"""An index of images: paths relative to it, columns by name, and what is wrong with one in a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_sets import DOMAINS, dicom_dataset, rows, save_dicom, write_index
from unseen.data import DataRequest, load_data
from unseen.data.images.image_index import ImageIndexFormat
from unseen.data.images.listing import typical_side
from unseen.data.sources import load_site, photo_side
from unseen.data.validate import check_data
from unseen.errors import UnseenError

OPTIONS = {"image_column": "path", "domain_column": "hospital", "group_column": "patient"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_index(tmp_path_factory.mktemp("index") / "set")


def refusal(path: Path, **options: str) -> str:
    with pytest.raises(UnseenError) as refused:
        load_data(DataRequest(str(path), **{**OPTIONS, **options}))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_images_domains_targets_and_groups(index: Path) -> None:
    data = load_data(DataRequest(str(index), image_size=20, **OPTIONS))
    np.testing.assert_array_equal(data.inputs, np.stack([row["pixels"] for row in rows()]))
    assert (data.domains, data.classes) == (DOMAINS, ("dog", "elephant"))
    assert len(np.unique(data.split_group_of)) == len(data) // 2
    mine = load_site("photo", DataRequest(str(index), image_size=20, **OPTIONS))
    np.testing.assert_array_equal(mine.inputs, data.inputs[data.indices("photo")])
    assert photo_side(DataRequest(str(index), image_column="path", domain_column="hospital")) == 20


def test_quantities_may_be_predicted_from_images(index: Path) -> None:
    text = index.read_text().replace("dog", "1.25").replace("elephant", "3.5")
    other = index.with_name("quantities.csv")
    other.write_text(text)
    data = load_data(DataRequest(str(other), **OPTIONS))
    assert data.task == "regression" and sorted(set(data.targets.tolist())) == [1.25, 3.5]


def test_wrong_columns_missing_files_and_repeated_rows(index: Path, tmp_path: Path) -> None:
    assert "(--image-column): 'paht'. Did you mean 'path'?" in refusal(index, image_column="paht")
    assert "(--domain-column): 'city'" in refusal(index, domain_column="city")
    assert "(--group-column): 'person'" in refusal(index, group_column="person")
    broken = index.with_name("broken.csv")
    broken.write_text(index.read_text().replace("pictures/3.png", "pictures/gone.png"))
    assert "unreadable image pictures/gone.png (No such file or directory)" in refusal(broken)
    broken.write_text(index.read_text().replace("pictures/3.png", "pictures/2.png"))
    assert "image pictures/2.png is listed twice" in refusal(broken)
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("path,hospital,target,patient\n1,a,x,p\n2,b,y,q\n")
    assert "holds int64 values, expected paths" in refusal(numbers)


def test_the_check_warns_of_patients_until_they_are_named_and_of_those_in_two_hospitals(index: Path) -> None:
    without = check_data(DataRequest(str(index), image_column="path", domain_column="hospital"))
    assert any("--group-column patient" in warning for warning in without.warnings)
    moved = index.with_name("moved.csv")
    moved.write_text(index.read_text().replace("Doe^photodog0", "Doe^artdog0"))
    (warning,) = [w for w in check_data(DataRequest(str(moved), **OPTIONS)).warnings if "groups" in w]
    assert warning.startswith("1 groups (--group-column) are in more than one domain")
    assert "Doe" not in warning


def test_an_index_of_medical_files(tmp_path: Path) -> None:
    lines = ["path,site,target,patient"]
    for number, row in enumerate(rows()[::3]):
        save_dicom(dicom_dataset(row["pixels"][..., 0] * 10), tmp_path / "files" / f"{number}.dcm")
        lines.append(f"files/{number}.dcm,{row['domain']},{row['label']},p{number // 2}")
    (tmp_path / "index.csv").write_text("\n".join(lines))
    request = DataRequest(
        str(tmp_path / "index.csv"),
        image_column="path",
        domain_column="site",
        group_column="patient",
        settings={"window": "450/900"},
    )
    data = load_data(request)
    assert len(data) == 12 and data.repeats_groups
    assert typical_side(ImageIndexFormat().list_images(request)) == 20
