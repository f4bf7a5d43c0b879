"""The drawing library is bundled once and read from the cache folder afterwards."""

from __future__ import annotations

import pytest

from unseen.report.png import vega_lite_version
from unseen.report.vega_bundle import vega_script


@pytest.fixture(autouse=True)
def _forgotten():
    vega_script.cache_clear()
    yield
    vega_script.cache_clear()


def test_it_is_kept_for_the_next_process(monkeypatch, tmp_path):
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    code = vega_script(vega_lite_version())
    (kept,) = (tmp_path / "cache").iterdir()
    assert "vegaEmbed" in code and "</script" not in code
    assert kept.read_text(encoding="utf-8") == code
    kept.write_text("shorter", encoding="utf-8")
    vega_script.cache_clear()
    assert vega_script(vega_lite_version()) == "shorter"


def test_a_cache_that_cannot_be_written_costs_time_only(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "file"))
    assert "vegaEmbed" in vega_script(vega_lite_version())
