"""NIfTI: slices along the patient's axes in whatever orientation a volume is stored; what cannot be cut."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest

from made_sets import COUNT, DOMAINS, write_nifti
from unseen.data import DataRequest, load_data
from unseen.data.medical.nifti import read_nifti
from unseen.data.medical.windowing import MedicalSettings
from unseen.data.sources import load_site
from unseen.errors import UnseenError

SHAPE = (6, 8, 10)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nifti(tmp_path_factory.mktemp("nifti") / "sites")


def slices(path: Path, **settings: str) -> list[np.ndarray]:
    return read_nifti(path, 1, np.asarray, MedicalSettings(**settings))


def save(values: np.ndarray, path: Path, orientation: str = "RAS") -> Path:
    """Store a volume, given with its axes to right, anterior and superior, in another orientation."""
    volume = nibabel.Nifti1Image(values, np.eye(4))
    wanted = nibabel.orientations.axcodes2ornt(orientation)
    turned = volume.as_reoriented(
        nibabel.orientations.ornt_transform(nibabel.io_orientation(volume.affine), wanted)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(turned, path)
    return path


@pytest.mark.parametrize("orientation", ["RAS", "LPS", "PIR", "SAL"])
@pytest.mark.parametrize("axis", ["axial", "coronal", "sagittal"])
def test_a_mark_at_the_right_front_top_is_where_radiologists_expect_it(
    tmp_path: Path, orientation: str, axis: str
) -> None:
    values = np.zeros(SHAPE, np.float32)
    values[-1, SHAPE[1] // 2, SHAPE[2] // 2] = 100  # the patient's right
    values[SHAPE[0] // 2, -1, SHAPE[2] // 2] = 200  # anterior
    values[SHAPE[0] // 2, SHAPE[1] // 2, -1] = 300  # superior
    (shown,) = slices(save(values, tmp_path / "a.nii.gz", orientation), axis=axis, window="150.5/301")
    marks = {int(value): tuple(np.argwhere(shown == value)[0]) for value in np.unique(shown) if value}
    places = [marks[value] for value in sorted(marks)]
    across, down = {"axial": (0, 1), "coronal": (0, 2), "sagittal": (1, 2)}[axis]
    assert shown.shape == (SHAPE[down], SHAPE[across])
    left, top = places
    assert left[1] == 0, "right (sagittal: anterior) is on the left of the picture"
    assert top[0] == 0, "anterior (else superior) is at the top"


def test_grey_values_are_those_of_the_whole_volume(tmp_path: Path) -> None:
    values = np.tile(np.linspace(0, 100, 10, dtype=np.float32), (6, 8, 1))
    values[0, 0, 5] = np.nan
    (shown,) = slices(save(values, tmp_path / "a.nii"))
    assert abs(int(np.median(shown)) - 255 * 5 / 9) < 3


def test_folders_sites_and_slices_that_stay_together(sites: Path) -> None:
    data = load_data(DataRequest(str(sites), image_size=12, settings={"slices": "3"}))
    assert data.domains == DOMAINS and len(data) == 3 * 6 * COUNT
    assert len(np.unique(data.split_group_of)) == 6 * COUNT
    mine = load_site("photo", DataRequest(str(sites / "photo"), image_size=12, settings={"slices": "3"}))
    np.testing.assert_array_equal(mine.inputs, data.inputs[data.indices("photo")])
    one = load_data(DataRequest(str(sites), image_size=12, group_pattern=r"^sub-(\d)"))
    assert len(one) == 6 * COUNT and len(np.unique(one.split_group_of)) == 10


def test_what_is_no_volume_is_named(tmp_path: Path) -> None:
    for domain in ("a", "b"):
        for label in ("x", "y"):
            save(np.random.default_rng(0).random(SHAPE), tmp_path / "set" / domain / label / "fine.nii.gz")
    place = tmp_path / "set" / "a" / "x" / "odd.nii.gz"

    def refusal() -> str:
        with pytest.raises(UnseenError) as refused:
            load_data(DataRequest(str(tmp_path / "set")))
        assert "\n" not in str(refused.value)
        return str(refused.value)

    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4, 7)), np.eye(4)), place)
    assert "odd.nii.gz (of shape 4 x 4 x 4 x 7; expected a single volume)" in refusal()
    place.write_bytes(b"words")
    assert "not a NIfTI volume" in refusal()
    whole = save(np.random.default_rng(0).random((20, 20, 20)), place).read_bytes()
    place.write_bytes(whole[: len(whole) // 2])
    assert "odd.nii.gz (" in refusal()
    large = nibabel.Nifti1Header()
    large.set_data_shape((2000, 2000, 1500))
    place.write_bytes(gzip.compress(large.binaryblock + bytes(1000)))
    assert "of shape 2000 x 2000 x 1500; at most" in refusal()
