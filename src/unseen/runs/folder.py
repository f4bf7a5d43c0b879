"""The run folder: the names of its files, and the lock on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.errors import UsageError
from unseen.fileio import leftovers, locked, remove_leftovers

if TYPE_CHECKING:
    from unseen.config import RunConfig


class RunFolder:
    """Paths of a run's files (named only here), and the rules for starting in a used folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.records = path / "records.jsonl"
        self.result = path / "result.json"
        self.model = path / "model.safetensors"
        self.calibration = path / "calibration.json"
        self.report = path / "report.html"
        self.energy = path / "energy.json"
        self.card = path / "model-card.json"
        self.card_text = path / "model-card.md"
        self.card_signature = path / "model-card.json.sig"
        self.audit = path / "audit" / "audit.json"
        self.features = path / "features.json"
        self.tensorboard = path / "tensorboard"
        self.tracking = path / "tracking.json"
        self.checkpoints = path / "checkpoints"
        self.checkpoint = self.checkpoints / "latest.safetensors"
        self.client_states = self.checkpoints / "clients"
        self.sites = self.checkpoints / "sites.json"
        self.table = self.checkpoints / "table.json"
        self.lock = self.checkpoints / "lock"

    @property
    def holds_run(self) -> bool:
        """Check whether a run was started here."""
        return self.config.exists()

    def require_free(self) -> None:
        """Refuse a folder that already contains other files."""
        if self.holds_run:
            state = "a finished run" if self.result.exists() else "an unfinished run"
            raise UsageError(
                f"{self.path} already contains {state}: add --resume to continue it, or choose another --out"
            )
        if self.path.is_file():
            raise UsageError(f"{self.path} is a file; --out takes a folder")
        if self.path.is_dir() and not self._holds_only_leftovers():
            raise UsageError(f"{self.path} is not empty and contains no run: choose another --out")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against a second process; the lock ends with the process, even if it crashes."""
        with locked(self.lock, place=self.path, private=True):
            for folder in (self.path, self.checkpoints):
                remove_leftovers(folder)
            yield

    def _holds_only_leftovers(self) -> bool:
        """Check that there is nothing but what a run leaves that was killed before it wrote anything."""
        own = {self.checkpoints, *leftovers(self.path)}
        inside = set(self.checkpoints.iterdir()) if self.checkpoints.is_dir() else set()
        return set(self.path.iterdir()) <= own and inside <= {self.lock}


NAMED_DOMAINS = 3
"""Number of held-out domains that a run folder's name lists."""


def default_folder(config: RunConfig, *, resume: bool) -> Path:
    """Choose a run folder under runs/: the newest of that name to resume, else the first that is free."""
    held_out = config.hold_out[:NAMED_DOMAINS]
    if more := len(config.hold_out) - len(held_out):
        held_out = (*held_out, f"{more}-more")
    parts = [Path(config.data).stem, *held_out, config.method, str(config.seed)]
    base = Path("runs") / "-".join(part.replace("/", "_") for part in parts)
    names = [base, *(base.with_name(f"{base.name}.{number}") for number in range(2, 1000))]
    free = next(position for position, path in enumerate(names) if not path.exists())
    return names[max(free - 1, 0)] if resume else names[free]


def resume_config(folder: Path, given: dict[str, Any]) -> RunConfig:
    """Read the configuration of an unfinished run; `given` overrides options on where it executes."""
    path = RunFolder(folder).config
    if not path.exists():
        raise UsageError(f"{folder} contains no run to resume (no {path.name})")
    from unseen.config import RunConfig

    recorded = RunConfig.load_recorded(path)
    return RunConfig.from_mapping({**vars(recorded), **given})
