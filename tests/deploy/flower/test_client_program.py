"""Which app bundles a site answers; none of them is unpacked or run."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from unseen.config import RunConfig
from unseen.deploy.apps import answer_message
from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.flower.app_folder import CODE, reason_foreign, write_app
from unseen.deploy.flower.client_program import choose_app
from unseen.deploy.flower.compat import CLIENT_PROGRAM, LAUNCHER_PROGRAM, TASK_PROGRAMS
from unseen.deploy.flower.prefork import SITE, write_launchers


def bundle(files: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


OWN = {"pyproject.toml": "[project]", "unseen_job/__init__.py": CODE, ".info/CONTENT": "pyproject.toml,0,0"}


def test_the_app_that_flower_builds_of_ours_is_answered_by_the_installed_unseen(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk

    config = RunConfig.from_mapping({"data": "x", "hold_out": ["a"]})
    write_app(tmp_path / "app", config, out=tmp_path, resume=False, terms=RoundPolicy())
    fab = build_fab_from_disk(tmp_path / "app")
    assert reason_foreign(fab) == ""
    assert choose_app(CLIENT_PROGRAM, "unseen/unseen-job", fab) is answer_message


@pytest.mark.parametrize(
    "files",
    [
        {},
        {**OWN, "unseen_job/__init__.py": CODE + "\nimport os"},
        {**OWN, "unseen_job/__init__.py": CODE.replace("unseen", "unseem", 1)},
        {**OWN, "extra.py": ""},
        {**OWN, "unseen/__init__.py": ""},
        {**OWN, "libc.so": ""},
        {"spy/__init__.py": CODE},
    ],
)
def test_a_bundle_with_any_other_code_is_foreign(files: dict[str, str]) -> None:
    """D1: what is compared is the code, not the name, which anyone can take."""
    assert reason_foreign(bundle(files))
    assert choose_app(CLIENT_PROGRAM, "unseen/unseen-job", bundle(files)) is not answer_message


@pytest.mark.parametrize("content", [b"", b"PK", bundle(OWN)[:-30], b"\0" * 1000])
def test_a_broken_bundle_is_foreign(content: bytes) -> None:
    assert reason_foreign(content) == "it cannot be read"


@pytest.mark.parametrize("program", [name for name in TASK_PROGRAMS if name != CLIENT_PROGRAM])
def test_no_other_program_of_flower_runs_at_a_site(program: str, tmp_path: Path) -> None:
    """D1: the coordinator chooses the kind of task; an AgentApp would be code of the job as well."""
    assert choose_app(program, "unseen/unseen-job", bundle(OWN)) is not answer_message
    write_launchers(tmp_path / "programs", role=SITE)
    script = (tmp_path / "programs" / program).read_text(encoding="utf-8")
    assert "unseen.deploy.flower.client_program" in script
    assert f"bin/{program}" not in script
    assert (tmp_path / "programs" / LAUNCHER_PROGRAM).exists()
