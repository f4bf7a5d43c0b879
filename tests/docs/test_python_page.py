"""The page on Python and the notebooks run as they are; nothing stored names a place of a machine."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
PLACES = re.compile(r"/(?:home|root|tmp|work|Users|usr|opt|private)/|[A-Z]:\\\\|Traceback")


def update_notebooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_notebooks", DOCS / "update_notebooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / "python.md").read_text("utf-8"), re.M | re.S)
    exec(compile(block, "python.md", "exec"), {})
    assert "source-validation" in capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_give_the_outputs_that_are_stored(path):
    pytest.importorskip("ipykernel")
    ran, stored = update_notebooks().run_notebook(path), json.loads(path.read_text("utf-8"))
    assert len(ran.cells) == len(stored["cells"])
    for cell, kept in zip(ran.cells, stored["cells"], strict=True):
        shown = [output.output_type for output in cell.get("outputs", [])]
        assert shown == [output["output_type"] for output in kept.get("outputs", [])]
        texts = [output.get("data", {}).get("text/plain") for output in cell.get("outputs", [])]
        assert not any(PLACES.search(text) for text in texts if text)


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["add-a-method", "first-steps"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_small_and_name_no_place(path):
    text = path.read_text("utf-8")
    assert len(text) < 40_000 and not PLACES.search(text)
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells), "run docs/update_notebooks.py"
    assert any(cell["outputs"] for cell in cells)
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]


def test_what_names_a_place_is_found():
    assert all(PLACES.search(text) for text in ("see /tmp/x", r"C:\\\\x", "/Users/me", "Traceback (most"))
    assert not PLACES.search("first_run/report.html")
