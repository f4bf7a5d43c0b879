"""Images of an audit as PNG: single ones for the page, and a grid of originals and reconstructions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from unseen.audit.attack import AttackResult
from unseen.audit.audit import Audit
from unseen.audit.audit_summary import attacks_of_kind
from unseen.audit.reconstruction_score import Reconstruction
from unseen.fileio import write_atomically
from unseen.report.png import encode_png, to_pil

MOST_COLUMNS = 8
"""Images in one row."""
_SIDE, _GAP, _LABELS, _LINE = 72, 6, 190, 16


def image_to_base64(image: Tensor) -> str:
    """Encode one image on the scale 0..1 as a PNG file in base64."""
    return encode_png(_pixels(image))


def first_reconstructions(attacks: Sequence[AttackResult]) -> list[Reconstruction]:
    """Return the reconstructions of some attacks, as many as fit in one row."""
    return [one for found in attacks for one in found.reconstructions][:MOST_COLUMNS]


def write_image_grid(path: Path, audit: Audit) -> None:
    """Write the originals in the first row, then a row per protection and view."""
    rows: list[tuple[list[str], list[Tensor], list[str]]] = []
    originals: list[Reconstruction] = []
    for audited in audit.audited:
        for kind, title in (("message", "one message"), ("merged", "merged model")):
            images = first_reconstructions(attacks_of_kind(audited, kind))
            if images:
                scores = [f"{one.psnr:.1f} dB, {one.ssim:.2f}" for one in images]
                rows.append(([audited.name, title], [one.rebuilt for one in images], scores))
                originals = max(originals, images, key=len)
    if not rows:
        return
    first = [one.original for one in originals], [one.label for one in originals]
    rows.insert(0, (["originals", "class"], *first))
    write_atomically(path, lambda target: _draw(rows).save(target, format="PNG"))


def _draw(rows: Sequence[tuple[list[str], list[Tensor], list[str]]]) -> Any:
    from PIL import Image, ImageDraw

    columns = max(len(images) for _, images, _ in rows)
    step = _SIDE + _GAP + 14
    sheet = Image.new("RGB", (_LABELS + columns * step, len(rows) * (_SIDE + _LINE + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (title, images, below) in enumerate(rows):
        top = _GAP + number * (_SIDE + _LINE + _GAP)
        draw.text((_GAP, top + 20), "\n".join(title), fill="black")
        for column, (image, text) in enumerate(zip(images, below, strict=True)):
            left = _LABELS + column * step
            shown = to_pil(_pixels(image)).convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
            sheet.paste(shown, (left, top))
            draw.text((left, top + _SIDE + 2), text, fill="black")
    return sheet


def _pixels(image: Tensor) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = image.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    return pixels
