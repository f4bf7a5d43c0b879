"""Draw the effect of FedDG's amplitude mixing on images: docs/images/feddg-mixing.png.

python docs/feddg_mixing.py                    the two photographs included in scikit-learn
python docs/feddg_mixing.py FIRST SECOND       two images of yours, or folders (their first image)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from unseen.methods.feddg.feddg import FedDGSettings
from unseen.methods.feddg.spectra import low_amplitudes, mix_amplitudes

ROOT = Path(__file__).parents[1]
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SIDE, GAP, LABEL = 128, 6, 24
FORMATS = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


def sample_pictures() -> list[Image.Image]:
    """Load the photographs of scikit-learn."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(pixels) for pixels in load_sample_images().images]


def read_picture(path: Path) -> Image.Image:
    """Open an image, or the first one below a folder."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in FORMATS)
        if not found:
            raise SystemExit(f"{path} has no images ({', '.join(sorted(FORMATS))})")
        path = found[0]
    return Image.open(path)


def as_tensor(picture: Image.Image) -> Tensor:
    """Return the center square of an image on the scale 0..1: (1, 3, side, side)."""
    short = min(picture.size)
    left, top = ((length - short) // 2 for length in picture.size)
    square = picture.convert("RGB").crop((left, top, left + short, top + short)).resize((SIDE, SIDE))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].float() / 255


def mixed_row(own: Tensor, partner: Tensor, *, window: float) -> list[Tensor]:
    """Return the image, its partner, and the image with growing fractions of the partner's amplitudes."""
    amplitudes = low_amplitudes(partner, window=window)
    mixed = [
        mix_amplitudes(own, amplitudes, torch.tensor([share]), window=window).clamp(0, 1) for share in SHARES
    ]
    return [own, partner, *mixed]


def draw(rows: list[list[Tensor]]) -> Image.Image:
    """Arrange the images in a grid, with a line of labels above."""
    labels = ["image", "partner", *(f"lambda {share:g}" for share in SHARES)]
    size = (len(labels) * (SIDE + GAP) + GAP, LABEL + len(rows) * (SIDE + GAP))
    sheet = Image.new("RGB", size, "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=15)
    for column, label in enumerate(labels):
        left = GAP + column * (SIDE + GAP)
        pen.text((left + SIDE / 2, LABEL / 2), label, fill="black", font=font, anchor="mm")
        for number, row in enumerate(rows):
            pixels = (row[column][0].permute(1, 2, 0) * 255).round().byte().numpy()
            sheet.paste(Image.fromarray(pixels), (left, LABEL + number * (SIDE + GAP)))
    return sheet


def main() -> None:
    """Read the command line and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pictures", nargs="*", type=Path, help="two images or folders")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "feddg-mixing.png")
    parser.add_argument("--window", type=float, default=FedDGSettings().window)
    given = parser.parse_args()
    if len(given.pictures) not in (0, 2):
        parser.error("give two images (or folders), or none")
    pictures = [read_picture(path) for path in given.pictures] or sample_pictures()
    first, second = (as_tensor(picture) for picture in pictures)
    rows = [mixed_row(a, b, window=given.window) for a, b in ((first, second), (second, first))]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    draw(rows).save(given.out, optimize=True)
    print(f"wrote {given.out}")


if __name__ == "__main__":
    main()
