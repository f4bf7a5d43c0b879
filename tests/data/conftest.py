"""Folders of images made by the test, and a cache of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MakeImages = Callable[..., Path]


@pytest.fixture(autouse=True)
def image_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep decoded images of a test below its own temporary folder."""
    folder = tmp_path / "image-cache"
    monkeypatch.setenv("UNSEEN_CACHE", str(folder))
    return folder


@pytest.fixture
def make_images(tmp_path: Path) -> MakeImages:
    """Write `count` pictures a class of every domain; the colour tells domain and class apart."""

    def write(
        domains: tuple[str, ...] = ("photo", "sketch"),
        classes: tuple[str, ...] = ("cat", "dog"),
        *,
        count: int = 3,
        folder: str = "pictures",
        side: int = 20,
    ) -> Path:
        root = tmp_path / folder
        for first, domain in enumerate(domains):
            for second, label in enumerate(classes):
                place = root / domain / label
                place.mkdir(parents=True, exist_ok=True)
                for number in range(count):
                    colour = (40 * first + 20, 30 * second + 10, 10 * number)
                    Image.fromarray(np.full((side, side, 3), colour, np.uint8)).save(place / f"{number}.png")
        return root

    return write
