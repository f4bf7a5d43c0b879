"""Four sites with tiny images of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_sites import LoopbackGrid, make_images


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images")


@pytest.fixture
def grid(images: Path, tmp_path: Path) -> LoopbackGrid:
    return LoopbackGrid(images, tmp_path / "sites")
