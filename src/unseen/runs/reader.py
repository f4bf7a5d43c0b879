"""Read a run folder, finished or not: its configuration, records and result.

Everything the report shows is computed from these three files, so a report can be rewritten at any
time, on another machine, without the data, the model or PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unseen.checksums import check_sealed, read_recorded_toml
from unseen.errors import UnseenError, UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, check_kept, parse_json, parse_records
from unseen.tasks import primary_metric

_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Run:
    """The content of one run folder; `result` is None while the run is unfinished."""

    folder: Path
    config: dict[str, Any]
    records: list[Record]
    result: dict[str, Any] | None

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self.result is not None

    @property
    def facts(self) -> Record:
        """The result, or, while there is none, what the start record and the configuration say."""
        if self.result is not None:
            return self.result
        known = {"run_id": self.start.get("run_id", ""), "held_out": self.held_out, "task": self.task}
        return self.config | known | {"data": self.data.get("name", self.config.get("data", ""))}

    @property
    def start(self) -> Record:
        """The first start record, or an empty one."""
        return next(iter(self.events("start")), {})

    @property
    def data(self) -> Record:
        """The start record's facts about the data: classes, domains, counts, notes."""
        return dict(self.start.get("data") or {})

    @property
    def final(self) -> Record:
        """The final record, or an empty one."""
        return next(reversed(self.events("final")), {})

    @property
    def rounds(self) -> list[Record]:
        """Round records in order; of a round that was repeated after a crash, the last."""
        return self._by_round("round")

    @property
    def evaluations(self) -> list[Record]:
        """Evaluation records in order; of a repeated one, the last."""
        return self._by_round("evaluation")

    @property
    def stopped(self) -> Record:
        """The record of an early end, before the last round that was planned; empty if there was none."""
        return next(iter(self.events("stop")), {})

    @property
    def held_out(self) -> list[str]:
        """Names of the held-out domains."""
        found = (
            (self.result or {}).get("held_out") or self.start.get("held_out") or self.config.get("hold_out")
        )
        return [found] if isinstance(found, str) else [str(name) for name in found or []]

    @property
    def task(self) -> str:
        """The name of the task."""
        found = (self.result or {}).get("task") or self.data.get("task") or self.config.get("task")
        return str(found or "classification")

    @property
    def metric(self) -> str:
        """The headline metric: the one by which rounds are selected."""
        return primary_metric(self.task)

    @property
    def selected_round(self) -> int | None:
        """The round whose model was kept."""
        found = (self.result or {}).get("selected_round", self.final.get("round"))
        return None if found is None else int(found)

    def events(self, kind: str) -> list[Record]:
        """Return all records of one kind, in the order of writing."""
        return [record for record in self.records if record.get("event") == kind]

    def _by_round(self, kind: str) -> list[Record]:
        latest = {int(record["round"]): record for record in self.events(kind) if "round" in record}
        return [latest[number] for number in sorted(latest)]


def rounds_trained(result: Mapping[str, Any]) -> int | None:
    """Return how many rounds a finished run has: those planned, unless it stopped early."""
    found = (result.get("stopped") or {}).get("round", result.get("rounds"))
    return None if found is None else int(found)


def read_run(folder: Path) -> Run:
    """Read a run folder; an incomplete last record, which a crash leaves behind, is ignored."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: give the run folder that 'unseen train' wrote")
    files = RunFolder(folder)
    if not files.records.is_file() and not files.config.is_file():
        raise UsageError(
            f"{folder} is not a run folder: it has neither {files.config.name} nor {files.records.name}; "
            "give the folder that 'unseen train' wrote"
        )
    return Run(
        folder=folder,
        config=read_recorded_toml(files.config) if files.config.is_file() else {},
        records=_read_records(files) if files.records.is_file() else [],
        result=_read_result(files.result) if files.result.is_file() else None,
    )


def _read_records(files: RunFolder) -> list[Record]:
    """Read the records and compare them with the checksum of the finished run, or of its checkpoint."""
    way_out = "restore it from a backup"
    check_sealed(files.records, way_out=way_out)
    count, expected = _part_with_checksum(files.checkpoint)
    try:
        content = files.records.read_bytes()
    except OSError as error:
        raise UnseenError(f"cannot read {files.records}: {error.strerror or error}") from error
    check_kept(content[:count], files.records, expected)
    return parse_records(content, files.records)


def _part_with_checksum(checkpoint: Path) -> tuple[int, str]:
    """Read from the header of a checkpoint how many bytes of the records it covers, and their checksum."""
    try:
        with checkpoint.open("rb") as file:
            header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _LONGEST_HEADER)))
        facts = json.loads(header["__metadata__"]["checkpoint"])
        return int(facts["records_bytes"]), str(facts["records_sum"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0, ""


def _read_result(path: Path) -> dict[str, Any]:
    check_sealed(path, way_out="restore it from a backup, or delete it and resume the run")
    try:
        result = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnseenError(f"{path} is not valid JSON ({error}); delete it and resume the run") from error
    if not isinstance(result, dict):
        raise UnseenError(f"{path} contains a {type(result).__name__}, expected an object; resume the run")
    return result
