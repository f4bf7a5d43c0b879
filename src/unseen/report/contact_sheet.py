"""The contact sheet: images of every domain as the network gets them, each clean and then augmented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unseen.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

    from unseen.data import DataSet

PER_DOMAIN = 2
VERSIONS = 6
_BATCH = 8
"""Images of a domain that are augmented together: some augmentations mix them."""
_SMALLEST, _LARGEST = 72, 144
_GAP, _LINE, _LEFT = 6, 18, 150
_INK, _QUIET, _PAPER = "#2b2f33", "#667078", "#ffffff"


def draw_sheet(data: DataSet, augmentation: str, *, seed: int = 0) -> Image:
    """Draw one row per image: its domain and class, the clean image, then augmented versions of it."""
    from PIL import Image, ImageDraw, ImageFont

    if not data.is_image or data.is_measured:
        kind = "measured values" if data.is_image else "a table"
        raise UsageError(f"--sheet shows images, and {data.name} contains {kind}: leave it out")
    rows = [row for domain in data.domains for row in _domain_rows(data, domain, augmentation, seed=seed)]
    side = rows[0][1].shape[1]
    tile = _tile_side(side)
    top = 2 * _LINE + _GAP
    size = (_LEFT + (1 + VERSIONS) * (tile + _GAP) + _GAP, top + len(rows) * (tile + _GAP))
    sheet = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)

    def write(x: int, y: int, text: str, colour: str = _INK) -> None:
        pen.text((x, y), text, fill=colour, font=font)

    write(_GAP, 2, f"{data.name}: {side} pixels, --augment {augmentation}")
    for column in range(1 + VERSIONS):
        name = f"augmented {column}" if column else "clean"
        write(_LEFT + column * (tile + _GAP), _LINE + 2, name, _QUIET)
    for number, (caption, images) in enumerate(rows):
        y = top + number * (tile + _GAP)
        for line, text in enumerate(caption):
            write(_GAP, y + line * _LINE, _shorten(text, pen, font), _QUIET if line else _INK)
        for column, image in enumerate(images):
            shown = Image.fromarray(image).resize((tile, tile), _filter(side))
            sheet.paste(shown, (_LEFT + column * (tile + _GAP), y))
    return sheet


def _domain_rows(
    data: DataSet, domain: str, augmentation: str, *, seed: int
) -> list[tuple[tuple[str, str], npt.NDArray[np.uint8]]]:
    """Return caption and images (1 + versions, height, width, 3) of some samples of a domain."""
    import torch

    from unseen.data import Samples
    from unseen.data.augmentation import augment_batch, parse_augmentations
    from unseen.data.transforms import Normalize
    from unseen.seeding import numpy_generator, torch_generator

    indices = data.indices(domain)
    chosen = numpy_generator(seed, "contact sheet", domain).permutation(indices)[:_BATCH]
    batch = Samples(data, chosen).gather(torch.arange(len(chosen)))
    clean, steps = Normalize().scale(batch.inputs), parse_augmentations(augmentation).at("images")
    generator = torch_generator(seed, "contact sheet: augmentation", domain)
    versions = [clean] + [
        augment_batch(steps, clean, batch.targets, generator, classes=len(data.classes))[0]
        for _ in range(VERSIONS)
    ]
    pixels = (torch.stack(versions, dim=1) * 255).round().to(torch.uint8)
    shown = pixels[:PER_DOMAIN].permute(0, 1, 3, 4, 2).numpy()
    labels = [_label(data, target) for target in batch.targets[:PER_DOMAIN].tolist()]
    return [((domain, label), _as_colours(images)) for label, images in zip(labels, shown, strict=True)]


def _label(data: DataSet, target: float) -> str:
    return data.classes[int(target)] if data.classes else f"{target:.4g}"


def _as_colours(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Show three channels: the first three, or one of them three times."""
    return images[..., :3] if images.shape[-1] >= 3 else images[..., :1].repeat(3, axis=-1)


def _tile_side(side: int) -> int:
    """Enlarge small images by a whole factor, so that pixels stay squares; shrink large ones."""
    return side * -(-_SMALLEST // side) if side < _SMALLEST else min(side, _LARGEST)


def _filter(side: int) -> Any:
    from PIL.Image import Resampling

    return Resampling.NEAREST if side < _SMALLEST else Resampling.LANCZOS


def _shorten(text: str, pen: Any, font: Any) -> str:
    """Cut a text to the width of the left column."""
    while text and pen.textlength(text, font=font) > _LEFT - 2 * _GAP:
        text = text.removesuffix("…")[:-1] + "…"
    return text
