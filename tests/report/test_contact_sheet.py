"""The contact sheet: one row per image, the clean one first, then augmented versions."""

from __future__ import annotations

import numpy as np
import pytest

from unseen.data import from_arrays
from unseen.errors import UsageError
from unseen.report.contact_sheet import PER_DOMAIN, VERSIONS, draw_sheet


def tiles(sheet, rows: int) -> np.ndarray:
    """Cut the sheet into tiles (rows, columns, side, side, 3)."""
    pixels, gap, left = np.asarray(sheet), 6, 150
    side = (pixels.shape[1] - left - gap) // (1 + VERSIONS) - gap
    top = pixels.shape[0] - rows * (side + gap)
    return np.array(
        [
            [
                pixels[top + row * (side + gap) :, left + column * (side + gap) :][:side, :side]
                for column in range(1 + VERSIONS)
            ]
            for row in range(rows)
        ]
    )


def test_every_domain_has_rows_that_start_with_the_clean_image(make_tiny_data) -> None:
    data = make_tiny_data()
    rows = len(data.domains) * PER_DOMAIN
    shown = tiles(draw_sheet(data, "shift"), rows)
    for row, images in enumerate(shown):
        clean = images[0][::9, ::9]
        own = data.inputs[data.indices(data.domains[row // PER_DOMAIN])]
        assert any(np.array_equal(clean, image) for image in own)
        assert len({image.tobytes() for image in images}) == 1 + VERSIONS
    unchanged = tiles(draw_sheet(data, "none+mixstyle"), rows)
    assert all(np.array_equal(image, images[0]) for images in unchanged for image in images)


def test_grey_images_and_quantities_are_shown_too() -> None:
    inputs = np.random.default_rng(0).integers(0, 256, (6, 20, 20), dtype=np.uint8)
    sheet = draw_sheet(from_arrays(inputs, np.linspace(0, 1, 6), list("aabbcc")), "mixup")
    assert sheet.mode == "RGB"


def test_a_table_has_no_sheet() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 3))
    with pytest.raises(UsageError, match="--sheet shows images"):
        draw_sheet(from_arrays(rows, ["x", "y"] * 3, list("aabbcc")), "none")
