"""DICOM: grey values, windows, orientation, frames, tags as domain and group, and nothing private kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydicom.uid import JPEG2000, JPEGLSLossless

from made_sets import COUNT, DOMAINS, dicom_dataset, save_dicom, write_dicom
from unseen.data import DataRequest, load_data
from unseen.data.formats import find_format
from unseen.data.medical.dicom import read_frame, read_header, turn_upright
from unseen.data.medical.medical_folders import DicomFormat
from unseen.data.medical.windowing import MedicalSettings, apply_window
from unseen.data.sources import load_site
from unseen.data.validate import check_data, check_site
from unseen.errors import UnseenError, UsageError

GREY = np.linspace(0, 1000, 16 * 16).reshape(16, 16).astype(np.uint16)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dicom(tmp_path_factory.mktemp("dicom") / "sites")


def frame(tmp_path: Path, made: object, **settings: str) -> np.ndarray:
    path = save_dicom(made, tmp_path / "one.dcm")
    return read_frame(path, read_header(path), 0, MedicalSettings(**settings))


def test_all_values_are_shown_where_the_file_names_no_window(tmp_path: Path) -> None:
    np.testing.assert_array_equal(frame(tmp_path, dicom_dataset(GREY)), np.rint(GREY / 1000 * 255))


def test_the_window_is_the_users_else_the_files_in_units_of_the_modality(tmp_path: Path) -> None:
    made = dicom_dataset(GREY)
    made.RescaleSlope, made.RescaleIntercept = 2, -1000
    made.WindowCenter, made.WindowWidth = [40, 300], [400, 1500]
    hounsfield = GREY.astype(np.float32) * 2 - 1000
    np.testing.assert_array_equal(frame(tmp_path, made), apply_window(hounsfield, 40, 400))
    np.testing.assert_array_equal(
        frame(tmp_path, made, window="-600/1500"), apply_window(hounsfield, -600, 1500)
    )


def test_the_linear_window_is_that_of_the_standard() -> None:
    """PS3.3 C.11.2.1.2 gives c=2048, w=4096 and, for 8 bits, the ends 0 and 4095."""
    shown = apply_window(np.array([-5.0, 0, 2047.5, 4095, 9000]), 2048, 4096)
    assert shown.tolist() == [0, 0, 128, 255, 255]
    assert apply_window(np.array([10.0, 11.0]), 11, 1).tolist() == [0, 255]
    assert apply_window(np.array([0.0, 50, 100]), 50, 100, "LINEAR_EXACT").tolist() == [0, 128, 255]
    assert apply_window(np.array([50.0]), 50, 100, "SIGMOID").tolist() == [128]


def test_an_inverted_photometric_interpretation_is_undone(tmp_path: Path) -> None:
    made = dicom_dataset(GREY)
    plain = frame(tmp_path, made)
    made.PhotometricInterpretation = "MONOCHROME1"
    np.testing.assert_array_equal(frame(tmp_path, made), 255 - plain)


def test_colour_is_kept(tmp_path: Path) -> None:
    made = dicom_dataset(GREY)
    colour = np.random.default_rng(0).integers(0, 255, (16, 16, 3), np.uint8)
    made.SamplesPerPixel, made.PhotometricInterpretation, made.PlanarConfiguration = 3, "RGB", 0
    made.BitsAllocated, made.BitsStored, made.HighBit = 8, 8, 7
    made.PixelData = colour.tobytes()
    np.testing.assert_array_equal(frame(tmp_path, made), colour)


@pytest.mark.parametrize(
    ("across", "down", "expected"),
    [
        ("L", "P", [[1, 2], [3, 4]]),
        ("R", "P", [[2, 1], [4, 3]]),
        ("L", "A", [[3, 4], [1, 2]]),
        ("P", "L", [[1, 3], [2, 4]]),
        ("L", "F", [[1, 2], [3, 4]]),
        ("R", "H", [[4, 3], [2, 1]]),
        ("A", "F", [[2, 1], [4, 3]]),
        ("F", "P", [[1, 3], [2, 4]]),
        ("", "", [[1, 2], [3, 4]]),
    ],
)
def test_pictures_are_turned_as_radiologists_view_them(
    across: str, down: str, expected: list[list[int]]
) -> None:
    assert turn_upright(np.array([[1, 2], [3, 4]]), (across, down)).tolist() == expected


def test_orientation_comes_from_the_files_cosines_or_letters(tmp_path: Path) -> None:
    made = dicom_dataset(GREY)
    plain = frame(tmp_path, made)
    made.ImageOrientationPatient = [-1, 0, 0, 0, 1, 0]
    np.testing.assert_array_equal(frame(tmp_path, made), plain[:, ::-1])
    del made.ImageOrientationPatient
    made.PatientOrientation = ["R", "F"]
    np.testing.assert_array_equal(frame(tmp_path, made), plain[:, ::-1])
    made.PatientOrientation = ["A", "R"]
    np.testing.assert_array_equal(frame(tmp_path, made), plain, err_msg="a mammogram stays as it hangs")


def test_folders_or_tags_name_site_and_patient(sites: Path) -> None:
    assert isinstance(find_format(sites), DicomFormat)
    request = DataRequest(str(sites), image_size=20, group_column="PatientID")
    data = load_data(request)
    assert (data.domains, data.classes) == (DOMAINS, ("dog", "elephant"))
    assert len(np.unique(data.split_group_of)) == len(data) // 2
    tags = load_data(
        DataRequest(str(sites), domain_column="InstitutionName", target_column="BodyPartExamined")
    )
    assert tags.domains == tuple(f"{name} clinic" for name in DOMAINS)
    assert tags.classes == ("DOG", "ELEPHANT")
    mine = load_site("photo", DataRequest(str(sites / "photo"), image_size=20, group_column="PatientID"))
    np.testing.assert_array_equal(mine.inputs, data.inputs[data.indices("photo")])
    np.testing.assert_array_equal(mine.split_group_of, data.split_group_of[data.indices("photo")])
    assert check_site("photo", DataRequest(str(sites / "photo"))).total == 2 * COUNT


def test_the_check_counts_patients_without_naming_them(sites: Path) -> None:
    warnings = check_data(DataRequest(str(sites))).warnings
    (warning,) = [text for text in warnings if "patients" in text]
    assert warning.startswith("18 of 18 patients have several images") and "PatientID" in warning
    assert "Doe" not in warning
    grouped = check_data(DataRequest(str(sites), group_column="PatientID"))
    assert not any("patients" in text for text in grouped.warnings)


def test_nothing_of_a_patient_or_of_private_tags_is_kept(sites: Path, image_cache: Path) -> None:
    data = load_data(DataRequest(str(sites), group_column="PatientID", domain_column="InstitutionName"))
    kept = [path.read_bytes() for path in image_cache.rglob("*") if path.is_file()]
    assert kept
    for secret in ("private secret", "Secret^Name", "Doe^"):
        assert not any(secret.encode() in content for content in kept)
        assert secret not in repr((data.name, data.notes, data.domains, data.classes))
    header = read_header(next(sites.rglob("*.dcm")))
    assert not any(element.tag.is_private for element in header)
    assert "PatientName" not in header and "PatientID" not in header
    with pytest.raises(UsageError, match="private tags are never read"):
        load_data(DataRequest(str(sites), group_column="00091001"))


def reason(tmp_path: Path, **settings: str) -> str:
    """What training says about a set with the file one.dcm."""
    for domain in ("a", "b"):
        save_dicom(dicom_dataset(GREY), tmp_path / "set" / domain / "x" / "fine.dcm")
    (tmp_path / "one.dcm").rename(tmp_path / "set" / "a" / "x" / "one.dcm")
    with pytest.raises(UnseenError) as refused:
        load_data(DataRequest(str(tmp_path / "set"), settings=settings))
    text = str(refused.value)
    assert "\n" not in text and "unreadable image a/x/one.dcm" in text
    (name,) = check_data(DataRequest(str(tmp_path / "set"))).unreadable
    assert name == "a/x/one.dcm"
    return text


@pytest.mark.parametrize("syntax", [JPEGLSLossless, JPEG2000])
def test_pixel_data_that_cannot_be_decoded(tmp_path: Path, syntax: str) -> None:
    from pydicom.encaps import encapsulate

    made = dicom_dataset(GREY)
    made.file_meta.TransferSyntaxUID = syntax
    made.PixelData = encapsulate([b"\xff\xd8 no such picture"])
    made["PixelData"].is_undefined_length = True
    save_dicom(made, tmp_path / "one.dcm")
    assert "pixel data in JPEG" in reason(tmp_path)


def test_a_header_without_a_transfer_syntax(tmp_path: Path) -> None:
    path = save_dicom(dicom_dataset(GREY), tmp_path / "one.dcm")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x02\x00\x10\x00UI", b"\x02\x00\x12\x00UI", 1))
    assert "names no transfer syntax" in reason(tmp_path)


def test_other_files_and_cut_ones(tmp_path: Path) -> None:
    (tmp_path / "one.dcm").write_bytes(b"words")
    assert "not a DICOM file" in reason(tmp_path)
    whole = save_dicom(dicom_dataset(GREY), tmp_path / "one.dcm").read_bytes()
    (tmp_path / "one.dcm").write_bytes(whole[:-100])
    assert "one.dcm (" in reason(tmp_path)
    made = dicom_dataset(GREY)
    del made.PixelData
    save_dicom(made, tmp_path / "one.dcm")
    assert "no pixel data" in reason(tmp_path)


def test_a_small_file_that_says_to_be_large_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    """N5: two kilobytes asked for 7 GB, and for more when they were windowed."""
    from pydicom.encaps import encapsulate
    from pydicom.uid import RLELossless

    made = dicom_dataset(GREY)
    made.file_meta.TransferSyntaxUID = RLELossless
    made.Rows = made.Columns = 60_000
    made.PixelData = encapsulate([b"\x02\x00\x00\x00" + bytes(60) + b"\x81\x00" * 4])
    made["PixelData"].is_undefined_length = True
    save_dicom(made, tmp_path / "one.dcm")
    assert "60000 x 60000 pixels; at most" in reason(tmp_path)


@pytest.mark.parametrize("frames", [2_000_000_000, -3])
@pytest.mark.parametrize("slices", ["auto", "all", "5"])
def test_frames_that_no_file_has_are_refused(tmp_path: Path, frames: int, slices: str) -> None:
    """N5: as many pictures were listed as the header said."""
    made = dicom_dataset(GREY)
    made.NumberOfFrames = frames
    save_dicom(made, tmp_path / "one.dcm")
    assert f"its header names {frames} frames" in reason(tmp_path, slices=slices)


def test_frames_are_refused_or_chosen_and_stay_together(tmp_path: Path) -> None:
    frames = np.stack([np.full((8, 8), 100 * number) for number in range(8)])
    frames[:, 0, 0], frames[:, 0, 1] = 1000, 0
    for domain in ("a", "b"):
        for label in ("x", "y"):
            save_dicom(dicom_dataset(frames), tmp_path / "set" / domain / label / "cine.dcm")
    with pytest.raises(UnseenError, match="8 frames; choose with --set-data slices=middle"):
        load_data(DataRequest(str(tmp_path / "set")))
    middle = load_data(DataRequest(str(tmp_path / "set"), image_size=8, settings={"slices": "middle"}))
    assert middle.inputs[0, 7, 7, 0] == round(0.4 * 255) and middle.split_group_of is None
    two = load_data(DataRequest(str(tmp_path / "set"), image_size=8, settings={"slices": "2"}))
    assert len(two) == 8 and len(np.unique(two.split_group_of)) == 4
    assert len(load_data(DataRequest(str(tmp_path / "set"), settings={"slices": "all"}))) == 32
    with pytest.raises(UsageError, match="slices=some"):
        load_data(DataRequest(str(tmp_path / "set"), settings={"slices": "some"}))
    with pytest.raises(UsageError, match="window=wide"):
        load_data(DataRequest(str(tmp_path / "set"), settings={"window": "wide"}))


def test_without_pydicom_the_error_names_the_extra(sites: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(UnseenError, match=r"unseen\[medical\]"):
        load_data(DataRequest(str(sites)))
