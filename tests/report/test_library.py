"""The drawing library is bundled once and read from the cache folder afterwards."""

from __future__ import annotations

import pytest

from unseen.report.library import drawing_library
from unseen.report.pictures import vega_lite_version


@pytest.fixture(autouse=True)
def _forgotten():
    drawing_library.cache_clear()
    yield
    drawing_library.cache_clear()


def test_it_is_kept_for_the_next_process(monkeypatch, tmp_path):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    code = drawing_library(vega_lite_version())
    (kept,) = (tmp_path / "cache").iterdir()
    assert "vegaEmbed" in code and "</script" not in code
    assert kept.read_text(encoding="utf-8") == code
    kept.write_text("shorter", encoding="utf-8")
    drawing_library.cache_clear()
    assert drawing_library(vega_lite_version()) == "shorter"


def test_a_cache_that_cannot_be_written_costs_time_only(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "file"))
    assert "vegaEmbed" in drawing_library(vega_lite_version())
