"""Submit a job to the coordinator's SuperLink with Flower's own command, and follow it to its end."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from unseen.callbacks.base import CallbackList, Callbacks
from unseen.config import RunConfig
from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.coordinator_home import note_run
from unseen.deploy.coordinator.events import follow
from unseen.deploy.flower.app_folder import write_app
from unseen.deploy.flower.compat import require_flower
from unseen.deploy.flower.flwr_cli import SuperLinkConnection, connection_error, run_flwr
from unseen.runner.run import RunResult
from unseen.runs.folder import RunFolder


def run_on_flower(
    config: RunConfig,
    *,
    coordinator: SuperLinkConnection,
    out: Path,
    resume: bool = False,
    terms: RoundPolicy | None = None,
    callbacks: Callbacks = None,
) -> RunResult:
    """Run a job on the sites of a coordinator on this machine; return the result in `out`."""
    require_flower()
    following, folder = CallbackList(callbacks), RunFolder(out)
    if not (resume and folder.holds_run):
        folder.require_free()

    def write(app: Path, notebook: Path) -> None:
        write_app(
            app,
            config,
            out=out,
            resume=resume,
            terms=terms or RoundPolicy(),
            notebook=notebook,
            names=coordinator.names,
        )

    submit_and_follow(write, coordinator, following, run=out)
    result = RunResult(out, json.loads(folder.result.read_text(encoding="utf-8")))
    following.on_train_end(result.as_run_end())
    return result


def submit_and_follow(
    write: Callable[[Path, Path], None],
    coordinator: SuperLinkConnection,
    following: CallbackList,
    *,
    run: Path | None = None,
) -> None:
    """Submit an app and follow it to its end; Ctrl-C stops it.

    write  writes the app into a folder; its event log goes to the given file
    run    the run folder, which the coordinator's live page follows; None where nothing is trained
    """
    with tempfile.TemporaryDirectory(prefix="unseen-flower-") as name:
        place = Path(name)
        notebook = place / "notebook.jsonl"
        write(place / "app", notebook)
        number = submit(place / "app", coordinator, home=place / "flwr")
        if coordinator.home is not None and run is not None:
            note_run(coordinator.home, run)
        try:
            follow(notebook, following)
        except KeyboardInterrupt:
            stop(number, coordinator, home=place / "flwr")
            raise


def submit(app: Path, coordinator: SuperLinkConnection, *, home: Path) -> str:
    """Submit an app to the SuperLink; return Flower's run id."""
    said = run_flwr(["run", str(app), "--format", "json"], coordinator, home=home)
    found = re.search(r'"run-id":\s*"(\d+)"', said)
    if found is None:
        raise connection_error(coordinator, said)
    return found.group(1)


def stop(number: str, coordinator: SuperLinkConnection, *, home: Path) -> None:
    """Stop a run."""
    run_flwr(["stop", number], coordinator, home=home)
