"""Small runs to track, whole or stopped as by a crash, and a tracker that keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

import unseen
from unseen.callbacks.base import Callback, StopTrainingError
from unseen.callbacks.tracked_values import VALUES, TrackedRun
from unseen.callbacks.tracking import Ending, Moment, Tracker, Trail
from unseen.data import DataSet
from unseen.runs.reader import read_run
from unseen.runs.records import Record

ROUNDS = 3


class StopInRound(Callback):
    """Ends the run, as a crash would, once a round's record is written."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_record(self, record: Record) -> None:
        if record["event"] == "round" and record["round"] == self.round:
            raise StopTrainingError("enough")


class Memory(Tracker):
    """Keeps everything; `servers` outlives the tracker, as a server does."""

    name = "memory"

    def __init__(
        self, servers: dict[str, list[tuple[str, int, float, float]]], *, remote: bool = False
    ) -> None:
        self.servers, self.remote = servers, remote
        self.runs: list[TrackedRun] = []
        self.endings: list[Ending] = []

    def open(self, run: TrackedRun, trail: Trail) -> Trail:
        self.runs.append(run)
        kept = trail if trail.id in self.servers else Trail(f"run {len(self.servers)}")
        self.points = self.servers.setdefault(kept.id, [])
        return kept

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        self.points += [(name, moment.round, value, moment.time) for name, value in values.items()]

    def finish(self, ending: Ending, moment: Moment) -> None:
        self.log(ending.values, moment)
        self.endings.append(ending)


def images(domains: tuple[str, str, str] = ("a", "b", "c")) -> DataSet:
    rng, count = np.random.default_rng(0), 18
    pixels = rng.integers(0, 256, (3 * count, 8, 8), dtype=np.uint8)
    return unseen.from_arrays(pixels, np.arange(3 * count) % 3, np.repeat(list(domains), count))


def train(
    out: Path, *callbacks: Callback, resume: bool = False, data: DataSet | None = None
) -> unseen.RunResult:
    data = data or images()
    return unseen.train(
        data,
        hold_out=data.domains[-1],
        out=out,
        rounds=ROUNDS,
        batch_size=4,
        workers=1,
        resume=resume,
        callbacks=list(callbacks),
    )


def recorded_points(folder: Path) -> dict[tuple[str, int], float]:
    """What a tracker has to have of a run: name and round -> value."""
    run = read_run(folder)
    return {(name, record["round"]): value for record in run.records for name, value in values_of(record)}


def values_of(record: Record) -> Iterator[tuple[str, float]]:
    yield from VALUES[record["event"]](record) if record["event"] in VALUES else ()
