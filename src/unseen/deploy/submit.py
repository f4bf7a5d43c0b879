"""Handing a job to the coordinator's SuperLink with Flower's own command, and following it to its end."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from unseen.callbacks.base import Listener
from unseen.config import RunConfig
from unseen.deploy.app_folder import write_app
from unseen.deploy.coordinator import Terms
from unseen.deploy.environment import require_flower
from unseen.deploy.events import follow
from unseen.deploy.flwr_command import Coordinator, flwr, unreachable
from unseen.runner.run import RunResult
from unseen.runs.folder import RunFolder


def run_on_flower(
    config: RunConfig,
    *,
    coordinator: Coordinator,
    out: Path,
    resume: bool = False,
    terms: Terms | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Run a job on the sites of a coordinator that runs on this machine; return what it leaves in `out`."""
    require_flower()
    folder = RunFolder(out)
    if not (resume and folder.holds_run):
        folder.require_free()
    with tempfile.TemporaryDirectory(prefix="unseen-flower-") as name:
        place = Path(name)
        notebook = place / "notebook.jsonl"
        write_app(
            place / "app",
            config,
            out=out,
            resume=resume,
            terms=terms or Terms(),
            notebook=notebook,
            names=coordinator.names,
        )
        number = submit(place / "app", coordinator, home=place / "flwr")
        try:
            follow(notebook, listener or Listener())
        except KeyboardInterrupt:
            stop(number, coordinator, home=place / "flwr")
            raise
    return RunResult(out, json.loads(folder.result.read_text(encoding="utf-8")))


def submit(app: Path, coordinator: Coordinator, *, home: Path) -> str:
    """Hand an app to the SuperLink; return the number that Flower gives the run."""
    said = flwr(["run", str(app), "--format", "json"], coordinator, home=home)
    found = re.search(r'"run-id":\s*"(\d+)"', said)
    if found is None:
        raise unreachable(coordinator, said)
    return found.group(1)


def stop(number: str, coordinator: Coordinator, *, home: Path) -> None:
    """Ask the SuperLink to end a run."""
    flwr(["stop", number], coordinator, home=home)
