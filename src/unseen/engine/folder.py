"""The run folder: what lies where, and who may write into it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unseen.errors import UsageError
from unseen.files import locked


class RunFolder:
    """Paths of a run's files, and the rules for starting in a folder that is not empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.records = path / "records.jsonl"
        self.result = path / "result.json"
        self.model = path / "model.safetensors"
        self.report = path / "report.html"
        self.checkpoint = path / "checkpoints" / "latest.safetensors"
        self.client_states = path / "checkpoints" / "clients"
        self._lock = path / "checkpoints" / "lock"

    @property
    def holds_run(self) -> bool:
        """Whether a run was begun here."""
        return self.config.exists()

    def require_free(self) -> None:
        """Refuse a folder in which a new run would meet other files."""
        if self.holds_run:
            state = "a finished run" if self.result.exists() else "an unfinished run"
            raise UsageError(
                f"{self.path} holds {state} already: add --resume to go on with it, or choose another --out"
            )
        if self.path.is_file():
            raise UsageError(f"{self.path} is a file; --out takes a folder")
        if self.path.is_dir() and any(self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and holds no run: choose another --out")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out of the folder; the lock ends with the process, however it ends."""
        with locked(self._lock, place=self.path):
            yield
