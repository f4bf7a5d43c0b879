"""The method that CONTRIBUTING.md shows works as printed and passes every test that runs per method."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unseen.methods import METHODS

ROOT = Path(__file__).parents[2]
NAME = "stay-near"


@pytest.fixture
def folder_with_method(tmp_path):
    """A folder with the shown file, as `my_method.py`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("```python\n")
    code, _, _ = rest.partition("\n```")
    (tmp_path / "my_method.py").write_text(code + "\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def shown_method(folder_with_method, monkeypatch):
    """Register the shown method for one test."""
    monkeypatch.syspath_prepend(folder_with_method)
    importlib.import_module("my_method")
    yield NAME
    METHODS._entries.pop(NAME)
    del sys.modules["my_method"]


def test_it_is_fedavg_without_pull_and_another_method_with_it(shown_method, make_experiment, go):
    plain, _ = go(make_experiment("fedavg"), "plain")
    none, _ = go(make_experiment(shown_method, settings={"pull": 0}), "none")
    some, _ = go(make_experiment(shown_method, settings={"pull": 1}), "some")
    assert torch.equal(plain.weights, none.weights)
    assert not torch.equal(plain.weights, some.weights)


def test_the_pull_keeps_clients_near(shown_method, make_experiment, go):
    def distances(pull):
        _, records = go(make_experiment(shown_method, settings={"pull": pull}), f"run-{pull}", rounds=1)
        (record,) = (entry for entry in records.entries if entry["event"] == "round")
        return record["diagnostics"]["distance"]

    free, held = distances(0), distances(5)
    assert free.keys() == held.keys() == {"a", "b", "c"}
    assert all(0 < held[client] < free[client] for client in free)


REGISTRY_DRIVEN = (
    "tests/methods/test_contract.py",
    "tests/report/test_methods_are_seen.py",
    "tests/privacy/test_protection_base.py",
    "tests/privacy/secagg/test_secagg_runs.py",
    "tests/bench/test_job_plan.py",
    "tests/deploy/test_loopback.py",
)
"""Tests that run once per registered method."""


def test_it_passes_all_tests_of_registered_methods(folder_with_method):
    options = ["-p", "my_method", "-p", "no:cacheprovider", "-k", NAME]
    paths = os.pathsep.join([str(folder_with_method), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *REGISTRY_DRIVEN, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_page_and_its_row_are_written_for_it(shown_method, tmp_path):
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "docs" / "update_readme.py")
    update_readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(update_readme)
    assert shown_method in update_readme.methods_block()
    for page in (ROOT / "docs" / "methods").glob("*.md"):
        shutil.copy(page, tmp_path)
    (page,) = update_readme.add_missing_pages(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page.name == f"{shown_method}.md" and text.startswith("# Stay-Near\n")
    assert "## Idea" in text and "## What leaves the client" in text and "| `pull` | 0.1 |" in text
    assert update_readme.add_missing_pages(tmp_path) == []


@pytest.mark.parametrize("command", ["check", "format --check"])
def test_it_is_as_clean_as_the_project(folder_with_method, command):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            *command.split(),
            "--stdin-filename",
            "src/unseen/methods/my_method.py",
            "-",
        ],
        cwd=ROOT,
        input=(folder_with_method / "my_method.py").read_text(encoding="utf-8"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
