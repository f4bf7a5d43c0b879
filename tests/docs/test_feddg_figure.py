"""The script that draws FedDG's figure works on pictures and folders, and the figure shows what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "feddg_mixing.py"
FIGURE = ROOT / "docs" / "images" / "feddg-mixing.png"
SIDE, GAP, TOP = 128, 6, 24


def cells(figure: Path) -> np.ndarray:
    """The pictures of a figure: rows x columns x height x width x channels, on the scale 0..1."""
    sheet = np.asarray(Image.open(figure).convert("RGB")) / 255
    return np.stack(
        [
            np.stack(
                [
                    sheet[top : top + SIDE, left : left + SIDE]
                    for left in range(GAP, sheet.shape[1], SIDE + GAP)
                ]
            )
            for top in range(TOP, sheet.shape[0], SIDE + GAP)
        ]
    )


def check(figure: Path) -> None:
    found = cells(figure)
    assert found.shape == (2, 7, SIDE, SIDE, 3)
    for row, other in zip(found, found[::-1], strict=True):
        assert np.array_equal(row[1], other[0]), "the partner is the other row's image"
        assert np.abs(row[2] - row[0]).max() < 0.01, "nothing of the partner is the image"
        distances = [np.abs(mixed - row[0]).mean() for mixed in row[2:]]
        assert distances == sorted(distances) and distances[-1] > 0.03


def test_the_figure_in_the_documents_is_a_mixing():
    check(FIGURE)


def test_it_draws_pictures_of_ones_own(tmp_path):
    ramp = np.linspace(0, 120, 200 * 150).reshape(200, 150).astype(np.uint8)
    Image.fromarray(np.stack([ramp, ramp // 2, ramp // 3], axis=2)).save(tmp_path / "dark.png")
    (tmp_path / "folder").mkdir()
    Image.fromarray(255 - ramp.T).save(tmp_path / "folder" / "bright.png")
    out = tmp_path / "out" / "figure.png"
    command = [
        sys.executable,
        str(SCRIPT),
        str(tmp_path / "dark.png"),
        str(tmp_path / "folder"),
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, capture_output=True)
    check(out)
