"""docs/security.md lists every attack of the second review, each with tests that make it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("update_security", ROOT / "docs" / "update_security.py")
update_security = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(update_security)


def test_the_page_lists_the_attacks_of_the_test_suite():
    page = update_security.PAGE.read_text(encoding="utf-8")
    shown = page.partition(update_security.BEGIN)[2].partition(update_security.END)[0].strip()
    assert shown == update_security.write_table(), "run: python docs/update_security.py"


def test_no_finding_is_without_a_test():
    tested = {finding for finding, _, _ in update_security.attacks()}
    assert set(update_security.FINDINGS) - tested == set()
    assert tested - set(update_security.FINDINGS) == set()
