"""The site of the documentation: links lead to its pages, and one that leads nowhere ends the build."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site_pages.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("document", "written", "leads_to"),
    [
        ("README.md", "docs/training.md", "training.md"),
        ("README.md", "tests/methods/test_contract.py", "source/tests/methods/test_contract.py.md"),
        ("CONTRIBUTING.md", "docs/architecture.md", "architecture.md"),
        ("docs/bench.md", "../results", "results/README.md"),
        ("docs/methods/csac.md", "../training.md#effort", "../training.md#effort"),
        ("docs/deploy.md", "../tests/hostile", "source/tests/hostile/index.md"),
        ("docs/python.md", "notebooks/first-steps.ipynb", "notebooks/first-steps.ipynb.md"),
        ("results/README.md", "demo/README.md", "demo/README.md"),
        ("docs/data.md", "https://example.org/x", "https://example.org/x"),
    ],
)
def test_links_become_those_of_the_site(
    site_pages: ModuleType, document: str, written: str, leads_to: str
) -> None:
    text = "see [this]({0})\n\n```\n[this]({0})\n```\n"
    shown = site_pages.with_site_links(text.format(written), ROOT / document)
    assert shown == f"see [this]({leads_to})\n\n```\n[this]({written})\n```\n"


def test_a_link_that_leads_nowhere_is_a_warning(
    site_pages: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, site_pages.log.name):
        site_pages.with_site_links("[gone](gone.md) [out](../../../etc/hosts)", ROOT / "docs" / "bench.md")
    assert [record.args for record in caplog.records] == [
        (Path("docs/bench.md"), "gone.md"),
        (Path("docs/bench.md"), "../../../etc/hosts"),
    ]


def test_every_page_in_the_menu_exists_and_every_page_of_the_docs_is_in_it(site_pages: ModuleType) -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = {line.rpartition(": ")[2] for line in menu.splitlines() if line.endswith(".md")}
    assert all(site_pages.origin_of(page) for page in named)
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= named


def test_the_modules_of_the_reference_exist(site_pages: ModuleType) -> None:
    assert all(importlib.util.find_spec(module) for module in site_pages.API)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small copy of what the site is made of."""
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    files = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "mkdocs.yml")
    for name in files:
        shutil.copy(ROOT / name, tmp_path)
    for name in ("docs", "results", "src", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


def test_a_strict_build_has_search_and_reference_and_no_broken_link(checkout: Path) -> None:
    done = build(checkout)
    assert done.returncode == 0, done.stderr
    site = checkout / "site"
    assert "hold_out" in (site / "reference" / "unseen.html").read_text(encoding="utf-8")
    assert "<math" in (site / "methods" / "csac.html").read_text(encoding="utf-8")
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert {"training.html", "methods/csac.html", "reference/unseen.html"} <= {
        each["location"] for each in found["docs"]
    }
    page = checkout / "docs" / "live.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[gone](gone.md)\n", encoding="utf-8")
    broken = build(checkout)
    assert broken.returncode != 0
    assert "docs/live.md: gone.md leads nowhere" in broken.stderr
