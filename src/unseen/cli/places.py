"""Where a run happens: on this machine, or at the sites of a federation."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.callbacks.base import Listener
    from unseen.config import RunConfig
    from unseen.deploy.flower.flwr_cli import SuperLinkConnection
    from unseen.runner.run import RunResult


@dataclass(frozen=True)
class FlowerPlace:
    """The coordinator of a federation and the terms for its sites."""

    coordinator: str | None = None
    ca: Path | None = None
    min_sites: int = 1
    round_deadline: float = 3600.0

    @property
    def again(self) -> str:
        """The options that name the same place once more."""
        if self.coordinator is None:
            return ""
        trust = f" --ca {shlex.quote(str(self.ca))}" if self.ca else ""
        return f" --coordinator {self.coordinator}{trust}"


def with_job_file(given: dict[str, Any]) -> dict[str, Any]:
    """Take what a job file says (the format of a run's config.toml); options given beside it count more."""
    job = Path(str(given.get("data", "")))
    if job.suffix.lower() != ".toml":
        return given
    from unseen.config import RunConfig

    return {**vars(RunConfig.load(job)), **{key: value for key, value in given.items() if key != "data"}}


def run_somewhere(
    config: RunConfig, place: FlowerPlace | None, *, out: Path, resume: bool, listener: Listener
) -> RunResult:
    """Run on the engine that the configuration names."""
    if config.engine != "flower":
        if place is not None and place.coordinator is not None:
            raise UsageError("--coordinator is for --engine flower; leave it out to run on this machine")
        from unseen.runner.run import run

        return run(config, out=out, resume=resume, listener=listener)
    if place is None or place.coordinator is None:
        raise UsageError("--engine flower needs --coordinator ADDRESS, where `unseen up` listens (host:port)")
    from unseen.deploy.coordinator import RoundPolicy
    from unseen.deploy.submit import run_on_flower

    return run_on_flower(
        config,
        coordinator=_coordinator(place.coordinator, place.ca),
        out=out,
        resume=resume,
        terms=RoundPolicy(deadline=place.round_deadline, min_sites=place.min_sites),
        listener=listener,
    )


def _coordinator(named: str, ca: Path | None) -> SuperLinkConnection:
    """Take an address as it is; a folder is the home of a coordinator on this machine."""
    from unseen.deploy.coordinator_home import CoordinatorHome
    from unseen.deploy.flower.flwr_cli import SuperLinkConnection

    if Path(named).is_dir():
        return CoordinatorHome.load(Path(named)).here
    if not named.rpartition(":")[2].isdigit():
        raise UsageError(f"--coordinator {named}: expected host:port, or the folder of `unseen up --home`")
    if ca is not None and not ca.is_file():
        raise UsageError(f"no such file: {ca}; --ca takes the coordinator's authority, a PEM file")
    return SuperLinkConnection(named, ca)
