"""Track a run, live or afterwards: every record goes to a tracker once, however often the run is resumed.

`RUN/tracking.json` says which tracked run belongs to the folder and which records it has. So a resumed run
continues the same tracked run, and records that were not sent, because there was no tracker yet or it failed,
are sent the next time: `unseen track` is nothing but the next time.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from unseen.callbacks.base import Callback, RunEnd, describe_error
from unseen.callbacks.tracked_values import VALUES, TrackedRun, describe_run, result_values
from unseen.errors import UnseenError
from unseen.fileio import write_json
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run, rounds_trained
from unseen.runs.records import Record


@dataclass
class Trail:
    """What a tracker has of a run.

    id        of the tracked run there; empty before it is opened
    rounds    the last round that was sent, per event
    finished  whether the result was sent too
    """

    id: str = ""
    rounds: dict[str, int] = field(default_factory=dict)
    finished: bool = False


@dataclass(frozen=True)
class Moment:
    """The place of a record in its run; `time` is in seconds since 1970, from the records alone."""

    event: str
    round: int
    time: float


@dataclass(frozen=True)
class Ending:
    """What a tracker gets of a finished run.

    values   the result's numbers
    figures  draws the score curves as PNG images by name
    files    page, configuration, records and result
    model    the trained model
    """

    values: Mapping[str, float]
    figures: Callable[[], Mapping[str, bytes]]
    files: tuple[Path, ...]
    model: Path


class Tracker(ABC):
    """Base class of trackers: opens (or continues) one tracked run, logs values, and finishes it.

    name    as in `--track NAME`
    place   where the values go, without secrets
    remote  whether that is another machine
    """

    name: ClassVar[str]
    place: str = "here"
    remote: bool = False

    @abstractmethod
    def open(self, run: TrackedRun, trail: Trail) -> Trail:
        """Continue the tracked run of a trail, or open a new one; return what is there."""

    @abstractmethod
    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        """Log the values of a record."""

    @abstractmethod
    def finish(self, ending: Ending, moment: Moment) -> None:
        """Log the result of a finished run; `moment` is its selected round."""

    def close(self) -> None:  # noqa: B027 (not every tracker keeps something open)
        """Flush, and let go of files and connections; the tracked run may be continued later."""


def read_trails(path: Path) -> dict[str, Trail]:
    """Read what every tracker has of a run; the keys are names and places of trackers."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: Trail(**values) for key, values in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UnseenError(f"{path} is damaged ({error}): delete it, and the run is tracked anew") from error


class Tracking(Callback):
    """Sends every record of a run to a tracker, each once, also those from before it was attached."""

    def __init__(self, tracker: Tracker, folder: Path) -> None:
        self.tracker, self.files = tracker, RunFolder(folder)
        self.name = self.group = ""
        self.sent = 0
        self._trail: Trail | None = None
        self._seen: set[tuple[str, int]] = set()
        self._time = 0.0

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Open the tracked run, and send the earlier records that it lacks."""
        with self._explain_failures():
            run = read_run(self.files.path)
            described = describe_run(run, name=self.name, group=self.group)
            self._time = described.started
            self._trail = self.tracker.open(
                described, read_trails(self.files.tracking).get(self._key, Trail())
            )
            self._save(self._trail)
        for record in run.records:
            self.on_record(record)

    def on_record(self, record: Record) -> None:
        """Send the values of a round or an evaluation."""
        trail, event = self._trail, record["event"]
        if trail is None or event not in VALUES or (event, record["round"]) in self._seen:
            return
        self._seen.add((event, record["round"]))
        self._time += record.get("seconds") or 0.0
        if record["round"] <= trail.rounds.get(event, -1):
            return
        with self._explain_failures():
            values = dict(VALUES[event](record))
            self.tracker.log(values, Moment(event, record["round"], self._time))
            trail.rounds[event] = record["round"]
            self._save(trail)
            self.sent += 1

    def on_train_end(self, end: RunEnd) -> None:
        """Send the result and close the tracker."""
        trail = self._trail
        if trail is None:
            return
        with self._explain_failures():
            if not trail.finished:
                run = read_run(self.files.path)
                step = run.selected_round or rounds_trained(end.result) or 0
                ending = Ending(
                    dict(result_values(end.result)), end.figures, self._artifacts(run), self.files.model
                )
                self.tracker.finish(ending, Moment("result", step, self._time))
                trail.finished = True
                self._save(trail)
        self.close()

    def close(self) -> None:
        """Close the tracker; `on_train_end` does it by itself."""
        if self._trail is not None:
            with self._explain_failures():
                self.tracker.close()
            self._trail = None

    def _artifacts(self, run: Run) -> tuple[Path, ...]:
        """List the files to upload; those with images of the held-out domain stay on this machine."""
        files = self.files
        listed = [files.config, files.result, files.calibration]
        if not (self.tracker.remote and run.final.get("examples")):
            listed += [files.report, files.records]
        return tuple(path for path in listed if path.is_file())

    @property
    def _key(self) -> str:
        return f"{self.tracker.name} {self.tracker.place}"

    def _save(self, trail: Trail) -> None:
        kept = {**read_trails(self.files.tracking), self._key: trail}
        write_json(self.files.tracking, {key: asdict(value) for key, value in kept.items()})

    @contextmanager
    def _explain_failures(self) -> Iterator[None]:
        """Keep a tracker from printing on standard output, and say what failed and how to go on."""
        try:
            with redirect_stdout(io.StringIO()):
                yield
        except Exception as error:
            raise UnseenError(
                f"{self._key}: {describe_error(error)}; send what it lacks later with: "
                f"unseen track {self.files.path} --to {self.tracker.name}"
            ) from error


def replay(run: Run, callback: Callback, end: RunEnd | None) -> None:
    """Call a callback as the run did while it trained; `end` is None if the run is not finished."""
    rounds = int(run.config.get("rounds", 0))
    callback.on_train_start(first_round=1, rounds=rounds, samples=0)
    for record in run.records:
        callback.on_record(record)
    if end is not None:
        callback.on_train_end(end)
    elif isinstance(callback, Tracking):
        callback.close()


def forget(folder: Path, name: str) -> None:
    """Forget which tracked runs of one tracker belong to a folder, so that the next is a new one."""
    path = RunFolder(folder).tracking
    kept = {key: asdict(trail) for key, trail in read_trails(path).items() if key.split(" ")[0] != name}
    if path.is_file():
        write_json(path, kept)
