"""A Flower app that contains a job, for `flwr run` by us or by a team with its own SuperLink."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from unseen import __version__
from unseen.config import RunConfig
from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.job import config_values
from unseen.fileio import write_text

MODULE = "unseen_job"
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "unseen-job"
version = "{version}"
description = "A run of Unseen. Every site needs Unseen installed; its data never leaves it."
license = "Apache-2.0"
dependencies = ["unseen[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "unseen"

[tool.flwr.app.components]
serverapp = "{module}:server_app"
clientapp = "{module}:client_app"

[tool.flwr.app.config]
{config}
"""
CODE = '''"""The two apps of an Unseen job; the job is in pyproject.toml."""

from unseen.deploy.apps import client_app, server_app

__all__ = ["client_app", "server_app"]
'''


def reason_foreign(bundle: bytes) -> str:
    """Return why an app bundle is not one that `write_app` makes, or ""; nothing in it is unpacked or run.

    Its pyproject.toml holds the job, which only the coordinator's side reads.
    """
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            code = [entry for entry in archive.infolist() if not entry.filename.endswith((".toml", ".md"))]
            own = [entry for entry in code if not entry.filename.startswith(".info/") and not entry.is_dir()]
            if [entry.filename for entry in own] != [f"{MODULE}/__init__.py"]:
                return "it has other files"
            if own[0].file_size != len(CODE.encode()) or archive.read(own[0]) != CODE.encode():
                return f"its {MODULE} is other code than this version of Unseen writes"
    except (BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
        return "it cannot be read"
    return ""


def write_app(
    folder: Path,
    config: RunConfig,
    *,
    out: Path,
    resume: bool,
    terms: RoundPolicy,
    notebook: Path | None = None,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write the app.

    out       the run folder, on the coordinator's machine
    notebook  a file on that machine for the run's event log
    names     node ids of the sites, if keys are registered; see `SuperLinkConnection`
    """
    values: dict[str, str | bool | float] = {
        "job": json.dumps(config_values(config)),
        "out": str(out.absolute()),
        "resume": resume,
        "round-deadline": terms.deadline,
        "min-sites": terms.min_sites,
        "notebook": str(notebook or ""),
        "names": json.dumps(dict(names or {})),
    }
    write_app_folder(folder, values)


def write_app_folder(folder: Path, values: Mapping[str, str | bool | float]) -> None:
    """Write an app whose configuration has these values; its code is always the same."""
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
    text = PYPROJECT.format(version=__version__, module=MODULE, config=lines)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "pyproject.toml", text)
    write_text(folder / MODULE / "__init__.py", CODE)
