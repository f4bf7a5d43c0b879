"""Finished jobs, read from their run folders, and a view of them without the held-out domain.

Every choice of a bench (a round, a setting) uses `without_domain`, which removes the scores of the held-out
domain; only the oracle rule and the reported numbers see them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unseen.bench.bench_job import RELEASED, BenchJob
from unseen.checksums import check_sealed
from unseen.config import TABLES, RunConfig
from unseen.errors import UnseenError
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, read_records
from unseen.tasks import primary_metric


@dataclass(frozen=True)
class FinishedRun:
    """A finished job: its result.json, its evaluations, and the number of clients of each round."""

    result: dict[str, Any]
    evaluations: tuple[Record, ...]
    fingerprint: str
    clients_by_round: tuple[int, ...] = ()

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.result["task"])

    @property
    def metric(self) -> str:
        """The primary metric of the task, which the tables show."""
        return primary_metric(self.task)


class ResultStore:
    """The finished jobs of a bench, each read once."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self._read: dict[str, FinishedRun] = {}

    def holds(self, job: BenchJob) -> bool:
        """Return whether the job is finished."""
        return job.id in self._read or RunFolder(job.folder(self.work)).result.exists()

    def get(self, job: BenchJob) -> FinishedRun | None:
        """Read a job; return None if it is not finished."""
        if not self.holds(job):
            return None
        if job.id not in self._read:
            folder = job.folder(self.work)
            _require_same(job, folder)
            self._read[job.id] = read_finished(folder)
        return self._read[job.id]

    def get_all(self, jobs: Iterable[BenchJob]) -> list[FinishedRun] | None:
        """Read several jobs; return None if one of them is not finished."""
        found = [self.get(job) for job in jobs]
        return None if None in found else cast(list[FinishedRun], found)


CHOSEN_BY_RUN = "auto"
"""Value that a run replaces by its choice, such as the precision that its machine computes fastest."""


def _require_same(job: BenchJob, folder: Path) -> None:
    """Refuse results from a version of the package with another default."""
    stored = RunConfig.load_recorded(RunFolder(folder).config)
    for key, (mine, theirs) in job.config.differences(stored).items():
        if mine in (None, CHOSEN_BY_RUN) or key in ("data", "weights"):
            continue
        if key in TABLES and _agree(mine, theirs):
            continue
        if key == "batch_size" and theirs < mine == RunConfig.batch_size:  # lowered to the smallest client
            continue
        raise UnseenError(
            f"{folder} was run with {key} = {theirs!r}, not {mine!r}: delete it or choose another --out"
        )


def _agree(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether settings agree, except new ones and those that a run derives (noise, delta)."""
    return all(value in (None, "none", theirs.get(name, value)) for name, value in mine.items())


def read_finished(folder: Path) -> FinishedRun:
    """Read a finished run folder."""
    paths = RunFolder(folder)
    try:
        for path in (paths.result, paths.records):
            check_sealed(path, way_out="restore it from a backup")
        result = json.loads(paths.result.read_text(encoding="utf-8"))
        records = read_records(paths.records)
        start = next(record for record in records if record["event"] == "start")
        evaluations = tuple(record for record in records if record["event"] == "evaluation")
        clients = tuple(len(record["clients"]) for record in records if record["event"] == "round")
        return FinishedRun(result, evaluations, start["data"]["fingerprint"], clients)
    except (OSError, UnseenError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise UnseenError(
            f"{folder} is a damaged job ({error or type(error).__name__}): delete that folder, start again"
        ) from error


def without_domain(evaluations: Sequence[Record], domain: str) -> list[Record]:
    """Remove the scores of a held-out domain, and of groups with its samples, from the evaluations."""
    return [
        {
            **record,
            "scores": [score for score in record["scores"] if not _is_of(score, domain)],
            "groups": [score for score in record.get("groups", ()) if score["split"] != "target"],
        }
        for record in evaluations
    ]


def _is_of(score: Record, domain: str) -> bool:
    return bool(score["split"] == "target" if domain == RELEASED else score["domain"] == domain)
