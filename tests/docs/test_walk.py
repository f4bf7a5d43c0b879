"""The walk in docs/architecture.md is the one that a run takes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_names_every_file_that_a_run_enters():
    spec = importlib.util.spec_from_file_location("update_walk", ROOT / "docs" / "update_walk.py")
    update_walk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update_walk)
    page = update_walk.PAGE.read_text(encoding="utf-8")
    shown = page.partition(update_walk.BEGIN)[2].partition(update_walk.END)[0].strip()
    assert shown == update_walk.write_table(update_walk.trace()), "run: python docs/update_walk.py"
