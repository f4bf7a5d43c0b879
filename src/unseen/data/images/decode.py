"""Decode image files of any kind to uint8 RGB squares: grey, palette, CMYK, 16-bit, float, rotated.

The whole image is resized (bilinear with antialiasing, no crop). Transparent parts become white. Of an
animation the first frame is used. A file that cannot be decoded to its end is refused, never used in part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from unseen.devices import available_cores

DECODER_VERSION = 1
"""Incremented whenever the same file would decode to other pixels, so that old caches are not used."""

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
Pixels = npt.NDArray[np.uint8]
Content = Path | bytes
"""An encoded image: its file, or its bytes."""
_AHEAD = 4
"""Items per core that are taken before their results are asked for."""
T = TypeVar("T")
R = TypeVar("R")


class UnreadableImageError(Exception):
    """An image file that cannot be decoded; the text is the reason."""


@dataclass(frozen=True)
class ImageDecoder:
    """Decoder: how a file is read at a given size, and the channels and type that result.

    version  incremented whenever the same file would give other values, so that old caches are not used
    """

    name: str
    read: Callable[[Path, int], npt.NDArray[Any]]
    channels: int
    dtype: str
    version: int


def decode_image(content: Content, size: int) -> Pixels:
    """Decode one image to (size, size, 3)."""
    return read_image(content, lambda image: to_square(image, size), target=size)


RGB = ImageDecoder("rgb", decode_image, channels=3, dtype="|u1", version=DECODER_VERSION)


def inspect_image(content: Content, size: int) -> tuple[str, Pixels]:
    """Decode one image to its end; return what is unusual about it and a grey thumbnail (size, size)."""
    return read_image(content, lambda image: inspect_opened(image, size))


def inspect_opened(image: Image.Image, size: int) -> tuple[str, Pixels]:
    """Return what is unusual about an image and a grey thumbnail (size, size)."""
    unusual = _unusual(image)
    upright = ImageOps.exif_transpose(_to_rgb(image)).convert("L")
    return unusual, np.asarray(upright.resize((size, size), Image.Resampling.BILINEAR))


def map_in_threads(work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield `work(item)` in order from a pool of threads (Pillow decodes without the GIL).

    Items are taken only a few ahead of the results, so a stream of large ones is never in memory as a whole.
    """
    cores = available_cores()
    with ThreadPoolExecutor(cores) as pool:
        running = deque[Future[R]]()
        for item in items:
            running.append(pool.submit(work, item))
            if len(running) > _AHEAD * cores:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def read_image(content: Content, use: Callable[[Image.Image], R], target: int | None = None) -> R:
    """Decode an image to its end and return what `use` makes of it; refuse it with the reason.

    target  side of what is wanted, where a smaller decoded image is enough
    """
    try:
        with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
            refuse_bomb(image.width, image.height)
            if target is not None:
                # libjpeg can halve a much larger image while decoding; twice the target keeps it sharp
                image.draft(None, (2 * target, 2 * target))
            image.load()
            return use(image)
    except UnreadableImageError:
        raise
    except Exception as error:  # Pillow's plugins fail with almost any kind of exception on broken files
        raise UnreadableImageError(_reason(error)) from error


def shorter_side(content: Content) -> int:
    """Read the shorter side of an image from its header; 0 where that fails."""
    try:
        with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
            return min(image.size)
    except Exception:  # as above
        return 0


def to_square(image: Image.Image, size: int) -> Pixels:
    """Resize a whole image, upright and in colour, to (size, size, 3)."""
    upright = ImageOps.exif_transpose(_to_rgb(image))
    return np.asarray(upright.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        grey = Image.fromarray(_eight_bits(np.asarray(image), sixteen=_is_sixteen_bit(image)))
        grey.info.update(image.info)
        return grey.convert("RGB")
    if _is_transparent(image):
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", transparent.size, "white")
        white.alpha_composite(transparent)
        flat = white.convert("RGB")
        flat.info.update(image.info)
        return flat
    return image if image.mode == "RGB" else image.convert("RGB")


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def _is_sixteen_bit(image: Image.Image) -> bool:
    """Recognize 16-bit grey; some versions of Pillow open a 16-bit PNG as 32-bit integers."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _eight_bits(values: npt.NDArray[Any], *, sixteen: bool) -> Pixels:
    """Scale grey values to 0..255: 16-bit by 257; others by the smallest usual range that contains them."""
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 65535):
        raise UnreadableImageError(f"grey values {low:g} to {high:g}; expected 0..1, 0..255 or 0..65535")
    if sixteen or high > 255:
        scaled = values / 257.0
    elif high <= 1 and values.dtype.kind == "f":
        scaled = values * 255.0
    else:
        scaled = values.astype(np.float64)
    return np.rint(scaled).astype(np.uint8)


def _unusual(image: Image.Image) -> str:
    found = []
    if image.mode.startswith("I") or image.mode == "F":
        found.append("16-bit grey" if _is_sixteen_bit(image) else "32-bit grey")
        _eight_bits(np.asarray(image), sixteen=_is_sixteen_bit(image))
    elif _is_transparent(image):
        found.append("transparent parts")
    elif image.mode != "RGB":
        found.append({"L": "grey", "1": "black and white", "P": "palette"}.get(image.mode, image.mode))
    if getattr(image, "n_frames", 1) > 1:
        found.append("several frames")
    if image.getexif().get(0x0112, 1) != 1:
        found.append("rotated by EXIF")
    return ", ".join(found)


def refuse_bomb(width: int, height: int) -> None:
    """Refuse pictures that a small file says to be large, before there is memory for them."""
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise UnreadableImageError(f"{width} x {height} pixels; at most {limit} pixels are decoded")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown kind"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).splitlines()
    return text[0] if text else type(error).__name__
