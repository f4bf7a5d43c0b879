"""Handing a job to the coordinator's SuperLink with Flower's own command, and following it to its end."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from unseen.config import RunConfig
from unseen.deploy.app_folder import write_app
from unseen.deploy.coordinator import Terms
from unseen.deploy.events import follow
from unseen.engine import Listener, RunFolder
from unseen.engine.flower.environment import flower_environment, flower_program, require_flower
from unseen.errors import UnseenError
from unseen.files import write_text
from unseen.run import RunResult

CONNECTION = "unseen"


@dataclass(frozen=True)
class Coordinator:
    """Where the SuperLink listens, and the authority that its certificate comes from (None: no TLS)."""

    address: str
    ca: Path | None = None


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
        write_app(place / "app", config, out=out, resume=resume, terms=terms or Terms(), notebook=notebook)
        number = submit(place / "app", coordinator, home=place / "flwr")
        try:
            follow(notebook, listener or Listener())
        except KeyboardInterrupt:
            stop(number, coordinator, home=place / "flwr")
            raise
    return RunResult(out, json.loads(folder.result.read_text(encoding="utf-8")))


def submit(app: Path, coordinator: Coordinator, *, home: Path) -> str:
    """Hand an app to the SuperLink; return the number that Flower gives the run."""
    said = _flwr(["run", str(app), CONNECTION, "--format", "json"], coordinator, home)
    found = re.search(r'"run-id":\s*"(\d+)"', said)
    if found is None:
        raise _unreachable(coordinator, said)
    return found.group(1)


def stop(number: str, coordinator: Coordinator, *, home: Path) -> None:
    """Ask the SuperLink to end a run."""
    _flwr(["stop", number, CONNECTION], coordinator, home)


def _flwr(arguments: list[str], coordinator: Coordinator, home: Path) -> str:
    """Run Flower's command with a connection of our own; what the user has set up stays as it is."""
    trust = (
        "insecure = true"
        if coordinator.ca is None
        else f"root-certificates = {json.dumps(str(coordinator.ca.absolute()))}"
    )
    write_text(
        home / "config.toml",
        f"[superlink.{CONNECTION}]\naddress = {json.dumps(coordinator.address)}\n{trust}\n",
    )
    try:
        done = subprocess.run(
            [flower_program("flwr"), *arguments],
            env=flower_environment(home),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unreachable(coordinator, str(error)) from error
    said = done.stdout + done.stderr
    if done.returncode:
        raise _unreachable(coordinator, said)
    return said


def _unreachable(coordinator: Coordinator, said: str) -> UnseenError:
    """Say in one line what Flower said in several."""
    told = re.search(r'"error-message":\s*("(?:[^"\\]|\\.)*")', said)
    lines = (json.loads(told.group(1)) if told else said).splitlines()
    plain = [line.strip(" │╭╮╰╯─") for line in lines]
    reason = next((line for line in reversed(plain) if line), "it gave no reason")
    trust = "its own authority (--ca)" if coordinator.ca else "no TLS (no --ca)"
    return UnseenError(
        f"the coordinator at {coordinator.address} cannot be reached with {trust}: {reason.split('. ')[0]}"
    )
