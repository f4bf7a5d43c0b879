"""DICOM files: frames as upright pictures with their window, and the few tags that a user asks for.

Only elements that pixels need and tags that are named as domain, target or group are parsed. Private elements
have no names, so they can be neither asked for nor kept; a patient's name is in no data set and no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from unseen.data.images.decode import UnreadableImageError, refuse_bomb
from unseen.data.images.image_sources import Use
from unseen.data.medical.windowing import MedicalSettings, Pixels, apply_range, apply_window
from unseen.errors import UsageError, missing_extra

SUFFIXES = (".dcm", ".dicom")
_MOST_FRAMES = 1 << 16
_PIXEL_TAGS = (
    *("Rows", "Columns", "NumberOfFrames", "PhotometricInterpretation", "Modality", "PixelPaddingValue"),
    *("RescaleSlope", "RescaleIntercept", "RescaleType", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *("ImageOrientationPatient", "PatientOrientation", "BurnedInAnnotation"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *("BitsStored", "PixelRepresentation"),
    *(
        f"{colour}PaletteColorLookupTable{part}"
        for colour in ("Red", "Green", "Blue")
        for part in ("Descriptor", "Data")
    ),
)
_OPPOSITE = dict(zip("LRAPHF", "RLPAFH", strict=True))


def require_pydicom() -> Any:
    """Import pydicom, or say how to install it."""
    try:
        import pydicom
    except ImportError as error:
        raise missing_extra("pydicom", "medical", "reading DICOM") from error
    return pydicom


def read_dicom(path: Path, images: int, use: Use[Any], settings: MedicalSettings) -> list[Any]:
    """Decode the chosen frames of a file and return what `use` makes of each, or the reason why it cannot."""
    try:
        header = read_header(path)
        return [
            use(Image.fromarray(read_frame(path, header, at, settings))) for at in _choose(header, settings)
        ]
    except UnreadableImageError as error:
        return [str(error)] * images


def count_frames(path: Path, settings: MedicalSettings) -> int:
    """Count the frames of a file that are used; 1 where its header cannot be read."""
    try:
        return settings.count_slices(_frames(read_header(path)))
    except UnreadableImageError:
        return 1


def read_header(path: Path, keywords: Sequence[str] = _PIXEL_TAGS) -> Any:
    """Parse these elements of a file and no others."""
    pydicom = require_pydicom()
    try:
        return pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(keywords))
    except pydicom.errors.InvalidDicomError:
        raise UnreadableImageError("not a DICOM file") from None
    except Exception as error:  # a damaged file fails with almost any kind of exception
        raise UnreadableImageError(_first_line(error)) from error


def read_tags(path: Path, keywords: Sequence[str]) -> dict[str, str]:
    """Read tags as texts; those that are missing or empty are left out."""
    header = read_header(path, keywords)
    found = {keyword: str(header.get(keyword) or "").strip() for keyword in keywords}
    return {keyword: text for keyword, text in found.items() if text}


def check_keyword(keyword: str, option: str) -> None:
    """Refuse what is no keyword of a standard tag."""
    require_pydicom()
    from pydicom.datadict import tag_for_keyword

    if tag_for_keyword(keyword) is None:
        raise UsageError(
            f"{option} {keyword!r} is no keyword of a standard DICOM tag; name one such as "
            "InstitutionName or PatientID (private tags are never read)"
        )


def _choose(header: Any, settings: MedicalSettings) -> list[int]:
    frames = _frames(header)
    if frames > 1 and settings.slices == "auto":
        raise UnreadableImageError(
            f"{frames} frames; choose with --set-data slices=middle, slices=all or a number"
        )
    return settings.choose_slices(frames)


def _frames(header: Any) -> int:
    """Return how many frames the header names; refuse numbers that no file has."""
    try:
        frames = int(header.get("NumberOfFrames") or 1)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableImageError(f"its number of frames cannot be read ({_first_line(error)})") from error
    if not 1 <= frames <= _MOST_FRAMES:
        raise UnreadableImageError(f"its header names {frames} frames; expected 1 to {_MOST_FRAMES}")
    return frames


def read_frame(path: Path, header: Any, frame: int, settings: MedicalSettings) -> Pixels:
    """Decode one frame to 8-bit grey or RGB: its values, window, photometric interpretation, orientation."""
    stored = _decode(path, header, frame)
    kind = str(header.get("PhotometricInterpretation") or "")
    if kind == "PALETTE COLOR":
        pixels = _eight_bits_of_colour(_apply_palette(stored, header))
    elif stored.ndim == 3:
        pixels = _eight_bits_of_colour(stored)
    else:
        pixels = _apply_own_window(stored, header, frame, settings)
        if kind == "MONOCHROME1":  # the lowest value is white
            pixels = 255 - pixels
    return np.ascontiguousarray(turn_upright(pixels, _directions(header, frame)))


def _decode(path: Path, header: Any, frame: int) -> npt.NDArray[Any]:
    """Decode the stored values of one frame; name the transfer syntax that cannot be decoded."""
    from pydicom.pixels.utils import pixel_array

    syntax = getattr(header, "file_meta", {}).get("TransferSyntaxUID")
    if syntax is None:
        raise UnreadableImageError(
            "its header names no transfer syntax, so its pixel data cannot be decoded; export it again"
        )
    refuse_bomb(int(header.get("Columns") or 0), int(header.get("Rows") or 0))
    try:
        values: npt.NDArray[Any] = pixel_array(path, index=frame)
    except (NotImplementedError, RuntimeError) as error:
        if "missing dependencies" not in str(error) and not isinstance(error, NotImplementedError):
            raise UnreadableImageError(f"pixel data in {syntax.name}: {_first_line(error)}") from error
        raise UnreadableImageError(
            f"pixel data in {syntax.name}, which cannot be decoded here; install a pydicom plugin for it, "
            "such as pylibjpeg, or store the file uncompressed"
        ) from error
    except AttributeError as error:
        raise UnreadableImageError(f"no pixel data (modality {header.get('Modality', 'unknown')})") from error
    except Exception as error:  # damaged pixel data fails with almost any kind of exception
        raise UnreadableImageError(_first_line(error)) from error
    return values


def _apply_own_window(stored: npt.NDArray[Any], header: Any, frame: int, settings: MedicalSettings) -> Pixels:
    """Apply the modality's rescaling, then the window: the user's, the file's own, or all values."""
    from pydicom.pixels.processing import apply_modality_lut, apply_voi

    slope, intercept = _find(header, "RescaleSlope", frame), _find(header, "RescaleIntercept", frame)
    if header.get("ModalityLUTSequence"):
        values = apply_modality_lut(stored, header).astype(np.float32)
    else:
        values = stored.astype(np.float32) * _number(slope, 1.0) + _number(intercept, 0.0)
    if settings.center_and_width is not None:
        return apply_window(values, *settings.center_and_width)
    center, width = _find(header, "WindowCenter", frame), _find(header, "WindowWidth", frame)
    if center is not None and width is not None:
        function = str(_find(header, "VOILUTFunction", frame) or "LINEAR")
        return apply_window(values, _number(center, 0.0), max(_number(width, 1.0), 1e-6), function)
    if header.get("VOILUTSequence"):
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        return apply_range(apply_voi(values.astype(stored.dtype), header), 0, 2**bits - 1)
    shown = values[stored != header.PixelPaddingValue] if "PixelPaddingValue" in header else values
    return apply_range(values, *((float(shown.min()), float(shown.max())) if shown.size else (0.0, 0.0)))


def _find(header: Any, keyword: str, frame: int) -> Any:
    """Find an element in the header or, in multi-frame files, in the functional groups."""
    if header.get(keyword) is not None:
        return header.get(keyword)
    for name, at in (("PerFrameFunctionalGroupsSequence", frame), ("SharedFunctionalGroupsSequence", 0)):
        groups = header.get(name) or []
        for element in groups[at] if at < len(groups) else []:
            if element.VR == "SQ" and element.value and element.value[0].get(keyword) is not None:
                return element.value[0].get(keyword)
    return None


def _number(value: Any, default: float) -> float:
    """Read a number; of several, as of several windows, the first."""
    if value is None or value == "":
        return default
    return float(value if isinstance(value, str | float | int) else next(iter(value)))


def _apply_palette(stored: npt.NDArray[Any], header: Any) -> npt.NDArray[Any]:
    from pydicom.pixels.processing import apply_color_lut

    try:
        coloured: npt.NDArray[Any] = apply_color_lut(stored, header)
    except Exception as error:
        raise UnreadableImageError(f"its palette cannot be used ({_first_line(error)})") from error
    return coloured


def _eight_bits_of_colour(values: npt.NDArray[Any]) -> Pixels:
    if values.dtype == np.uint8:
        return values
    return apply_range(values.astype(np.float32), 0, np.iinfo(values.dtype).max)


def _directions(header: Any, frame: int) -> tuple[str, str]:
    """Return where rows and columns of pixels run to, such as ("L", "P"); empty where unknown.

    The first is the direction of growing column numbers. A radiograph's own letters are used for frontal
    views only: how others hang differs between kinds of examination.
    """
    cosines = _find(header, "ImageOrientationPatient", frame)
    if cosines is not None and len(cosines) == 6:
        along = [float(value) for value in cosines]
        return _dominant(along[:3]), _dominant(along[3:])
    letters = [str(text)[:1] for text in header.get("PatientOrientation") or []]
    if len(letters) == 2 and letters[0] in ("L", "R") and letters[1] in ("H", "F"):
        return letters[0], letters[1]
    return "", ""


def _dominant(direction: Sequence[float]) -> str:
    """Name the patient's axis that a direction is closest to; DICOM's axes run to Left, Posterior, Head."""
    axis = int(np.argmax(np.abs(direction)))
    letter = "LPH"[axis]
    return letter if direction[axis] > 0 else _OPPOSITE[letter]


def turn_upright(pixels: npt.NDArray[Any], directions: tuple[str, str]) -> npt.NDArray[Any]:
    """Turn a picture as radiologists view it: columns run to the patient's left (in sagittal views to
    posterior), rows to posterior in axial views and to the feet in others.
    """
    across, down = directions
    if not across or not down or across in (down, _OPPOSITE[down]):
        return pixels
    axes = {_axis(across), _axis(down)}
    horizontal = "L" if "L" in axes else "P"
    if _axis(across) != horizontal:
        pixels, across, down = pixels.swapaxes(0, 1), down, across
    if across != horizontal:
        pixels = pixels[:, ::-1]
    return pixels[::-1] if down in ("A", "H") else pixels


def _axis(letter: str) -> str:
    return {"R": "L", "A": "P", "F": "H"}.get(letter, letter)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:160] if lines else type(error).__name__
