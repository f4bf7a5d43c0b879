"""A hostile test bed: lying sites and lying coordinators against the real other side.

Every file `lying_*.py` is a library of lies; tests import them by name. The sites are those of tests/deploy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))

from tiny_sites import LoopbackGrid, make_images

from unseen.deploy.coordinator import coordinator


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images")


@pytest.fixture
def grid(images: Path, tmp_path: Path) -> LoopbackGrid:
    return LoopbackGrid(images, tmp_path / "sites")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
