"""What `pip install` gets: the wheel, built from the source distribution as an index would serve it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import unseen

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "unseen"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> tuple[Path, Path]:
    """The source distribution, and the wheel made of it; takes two seconds of computing."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (source,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return source, wheel


def test_the_wheel_has_every_file_of_the_package_and_the_pages_of_help(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {
        f"unseen/{path.relative_to(SOURCE).as_posix()}"
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"unseen/py.typed", "unseen/methods/method_costs.json"} <= files
    assert {Path(name).suffix for name in files} == {".py", ".typed", ".json", ".toml", ".j2", ".js", ".css"}
    docs = ROOT / "docs"
    pages = [*docs.glob("*.md"), *(docs / "methods").glob("*.md")]
    assert packed == files | {f"unseen/help/{path.relative_to(docs).as_posix()}" for path in pages}


def test_metadata_come_from_one_place(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        about = message_from_bytes(wheel.read(name))
        (entry,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
        assert "unseen = unseen.cli:main" in wheel.read(entry).decode()
    assert about["Version"] == unseen.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(about.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert about.get_payload().lstrip().startswith("# Unseen")


def test_the_source_distribution_can_be_tested(distributions):
    with tarfile.open(distributions[0]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {"tests/conftest.py", "constraints.txt", "Makefile", "LICENSE", "CHANGELOG.md"} <= names
    assert not [
        name for name in names if name.startswith((".venv", "dist/", "runs/")) or "__pycache__" in name
    ]


def test_the_wheel_works_away_from_the_checkout(distributions, tmp_path):
    with zipfile.ZipFile(distributions[1]) as wheel:
        wheel.extractall(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "unseen", "help", "training"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Training\n")


def test_changelog_and_citation_name_the_version():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", changes, re.MULTILINE)
    assert versions[0] == unseen.__version__
    assert versions == sorted(
        versions, key=lambda text: [int(part) for part in text.split(".")], reverse=True
    )
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {unseen.__version__}\n" in citation


def test_every_python_that_is_promised_is_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = {kind.rpartition(" ")[2] for kind in project["classifiers"] if re.search(r":: 3\.\d+$", kind)}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    matrices = re.findall(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert matrices
    assert all(set(re.findall(r"3\.\d+", matrix)) == promised for matrix in matrices)


def test_every_extra_for_users_is_installed_alone_and_used():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    tried = re.findall(r"^ +- \{extra: (\w+), use: \S", workflow, re.MULTILINE)
    assert sorted(tried) == sorted(set(project["optional-dependencies"]) - {"dev", "docs"})
