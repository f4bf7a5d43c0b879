"""Pictures as PNG: single ones for the page, and one sheet with originals above what attacks made of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from unseen.audit.attack import AttackResult
from unseen.audit.audit import Audit
from unseen.audit.audit_summary import attacks_of_kind
from unseen.audit.reconstruction_score import Reconstruction
from unseen.fileio import write_atomically

SHOWN = 8
"""Pictures beside one another."""
_SIDE, _GAP, _LABELS, _LINE = 72, 6, 190, 16


def image_to_base64(picture: Tensor) -> str:
    """One picture on the scale 0..1 as a PNG file in base64."""
    buffer = io.BytesIO()
    _image(picture).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def first_reconstructions(attacks: Sequence[AttackResult]) -> list[Reconstruction]:
    """The pictures of some attacks, as many as fit beside one another."""
    return [picture for found in attacks for picture in found.pictures][:SHOWN]


def write_image_grid(path: Path, audit: Audit) -> None:
    """Originals in the first row, then a row for each protection and view."""
    rows: list[tuple[list[str], list[Tensor], list[str]]] = []
    originals: list[Reconstruction] = []
    for audited in audit.audited:
        for kind, title in (("message", "one message"), ("merged", "merged model")):
            pictures = first_reconstructions(attacks_of_kind(audited, kind))
            if pictures:
                told = [f"{one.psnr:.1f} dB, {one.ssim:.2f}" for one in pictures]
                rows.append(([audited.name, title], [one.rebuilt for one in pictures], told))
                originals = max(originals, pictures, key=len)
    if not rows:
        return
    first = [one.original for one in originals], [one.label for one in originals]
    rows.insert(0, (["originals", "class"], *first))
    write_atomically(path, lambda target: _draw(rows).save(target, format="PNG"))


def _draw(rows: Sequence[tuple[list[str], list[Tensor], list[str]]]) -> Any:
    from PIL import Image, ImageDraw

    columns = max(len(pictures) for _, pictures, _ in rows)
    step = _SIDE + _GAP + 14
    sheet = Image.new("RGB", (_LABELS + columns * step, len(rows) * (_SIDE + _LINE + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (title, pictures, below) in enumerate(rows):
        top = _GAP + number * (_SIDE + _LINE + _GAP)
        draw.text((_GAP, top + 20), "\n".join(title), fill="black")
        for column, (picture, text) in enumerate(zip(pictures, below, strict=True)):
            left = _LABELS + column * step
            shown = _image(picture).convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
            sheet.paste(shown, (left, top))
            draw.text((left, top + _SIDE + 2), text, fill="black")
    return sheet


def _image(picture: Tensor) -> Any:
    from PIL import Image

    values = picture.clamp(0, 1).mul(255).round().byte().permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(values.squeeze(-1) if values.shape[-1] == 1 else values))
