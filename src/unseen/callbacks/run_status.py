"""How far a run is, from its events, and a callback that shows it where Python code is run."""

from __future__ import annotations

import time

from unseen.callbacks.base import Callback
from unseen.callbacks.html_display import Display
from unseen.evaluation.selection import mean_metric
from unseen.runs.records import Record
from unseen.tasks import is_fraction, metric_label


class RunStatus:
    """Round, loss, validation score, spent privacy and speed of a run.

    samples  that a full round trains on
    seen     that were trained on so far
    """

    def __init__(self) -> None:
        self.rounds = self.samples = self.seen = 0
        self._left = 0
        self._started = time.perf_counter()
        self._round, self._loss, self._score, self._spent = 0, "", "", ""

    def start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Take the plan of a run that starts or resumes."""
        self.rounds, self._round = rounds, first_round - 1
        self.samples = max(samples, 1)
        self._left = rounds - first_round + 1
        self._started = time.perf_counter()

    @property
    def total(self) -> int:
        """Samples that the rounds of this call train on."""
        return self._left * self.samples

    def update(self, record: Record) -> str:
        """Take an event; return a remark for the user, empty for most."""
        if record["event"] == "round":
            self._round = record["round"]
            self._loss = "" if record["loss"] is None else f"loss {record['loss']:.3f}"
            epsilon = record.get("protection", {}).get("epsilon")
            self._spent = "" if epsilon is None else f"epsilon {epsilon:.3g}"
        elif record["event"] == "evaluation":
            primary = next(iter(record["scores"][0]["metrics"]))
            value = mean_metric(record, "validation", primary)
            shown = f"{value:.1%}" if is_fraction(primary) else f"{metric_label(primary)} {value:.3f}"
            self._score = f"validation {shown}"
        elif record["event"] == "fault":
            return f"round {record['round']}: {record['client']} was set aside: {record['reason']}"
        elif record["event"] == "stop":
            return f"stopped after round {record['round']} of {record['rounds']}: {record['reason']}"
        return ""

    @property
    def text(self) -> str:
        """The state in one line."""
        speed = self.seen / max(time.perf_counter() - self._started, 1e-9)
        parts = [f"round {min(self._round + 1, self.rounds)}/{self.rounds}", self._loss, self._score]
        return "  ".join(part for part in [*parts, self._spent, f"{speed:,.0f}/s"] if part)


class DisplayProgress(Callback):
    """Shows a run in a notebook or on a terminal; the line disappears at the end, remarks stay."""

    def __init__(self, display: Display, *, label: str) -> None:
        self._display, self._label = display, label
        self._status, self._remarks = RunStatus(), list[str]()

    def __enter__(self) -> DisplayProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._display.clear(tuple(self._remarks))

    def on_prepare(self, what: str, done: int, total: int) -> None:
        """Show slow preparation."""
        self._display.show(f"{self._label}: {what} {done}/{total}", part=done / max(total, 1))

    def on_note(self, note: str) -> None:
        """Keep a note for the end."""
        self._remarks.append(note)

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Start the bar."""
        self._status.start(first_round=first_round, rounds=rounds, samples=samples)

    def on_samples(self, count: int) -> None:
        """Advance the bar."""
        self._status.seen += count
        self._show()

    def on_record(self, record: Record) -> None:
        """Update the shown numbers."""
        if remark := self._status.update(record):
            self._remarks.append(remark)
        if self._status.rounds:
            self._show()

    def _show(self) -> None:
        part = min(self._status.seen / max(self._status.total, 1), 1.0)
        self._display.show(f"{self._label}: {self._status.text}", part=part)
