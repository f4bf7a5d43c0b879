"""The bench folder: paths of the grid, the job folders and the outputs; which jobs failed, and why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from unseen.bench.bench_job import BenchJob
from unseen.errors import UsageError
from unseen.fileio import locked, write_json
from unseen.runs.folder import RunFolder

FAILURE = "failure.json"


@dataclass(frozen=True)
class Failure:
    """Why a job failed: one line, and the traceback where there is one."""

    reason: str
    details: str = ""
    time: str = ""


class BenchFolder:
    """Paths of a bench; each job has an ordinary run folder, named by the job's id."""

    def __init__(self, path: Path, work: Path | None = None) -> None:
        """Use `path` for the outputs and `work` (by default `path/jobs`) for the job folders."""
        if path.is_file():
            raise UsageError(f"{path} is a file; --out takes a folder")
        self.path = path
        self.work = work or path / "jobs"
        self.grid = path / "bench.toml"
        self.results = path / "results.jsonl"
        self.search = path / "search.json"
        self.page = path / "report.html"
        self.lock = self.work / ".lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the job folders against a second bench."""
        inside = self.work == self.path / "jobs"
        place, option = (self.path, "--out") if inside else (self.work, "--work")
        with locked(self.lock, place=place, option=option):
            yield

    def failure(self, job: BenchJob) -> Failure | None:
        """Return why a job failed; None if it did not."""
        try:
            return Failure(**json.loads((job.folder(self.work) / FAILURE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            return Failure(f"{FAILURE} is unreadable ({error})")

    def has_failed(self, job: BenchJob) -> bool:
        """Return whether a job failed and was not tried again."""
        return (job.folder(self.work) / FAILURE).exists()

    def note_failure(self, job: BenchJob, reason: str, details: str = "") -> None:
        """Record in its folder why a job failed."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(job.folder(self.work) / FAILURE, asdict(Failure(reason, details, now)))

    def forget_failure(self, job: BenchJob) -> None:
        """Remove the record of a failure, so that the job is tried again."""
        (job.folder(self.work) / FAILURE).unlink(missing_ok=True)

    def make_ready(self, job: BenchJob) -> Path:
        """Prepare a job's folder for its first or next attempt; finished rounds in it are kept."""
        folder = job.folder(self.work)
        self.forget_failure(job)
        if folder.is_dir() and not RunFolder(folder).holds_run:
            shutil.rmtree(folder)
        return folder
