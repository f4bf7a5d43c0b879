"""`unseen data cache` tells what is cached and deletes only what was named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import unseen
from unseen.cli.main import app
from unseen.errors import UsageError


def fill_cache(folder: Path) -> None:
    """Train on images of which the frozen layers' output is cached too."""
    generator = np.random.default_rng(0)
    for domain in "abc":
        for label in ("cat", "dog"):
            place = folder / domain / label
            place.mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    unseen.train(str(folder), hold_out="c", model="lenet", train="head", rounds=1, out=folder / "run")


def sizes(*arguments: str) -> dict[str, int]:
    answer = CliRunner().invoke(app, ["data", "cache", "--json", *arguments], catch_exceptions=False)
    found: dict[str, int] = json.loads(answer.stdout)["bytes"]
    return found


def test_only_the_named_kind_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    fill_cache(tmp_path / "photos")
    before = sizes()
    assert before["images"] > 24 * 32 * 32 * 3 and before["features"] > 0
    after = sizes("--clear", "features")
    assert after == {**before, "features": 0}
    assert sizes("--clear", "all") == dict.fromkeys(before, 0)
    assert (tmp_path / "photos" / "a" / "cat" / "0.png").exists()


def test_an_empty_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "nothing"))
    assert set(sizes().values()) == {0}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kind of cached files: 'feature'"):
        sizes("--clear", "feature")
