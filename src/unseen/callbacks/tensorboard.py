"""TensorBoard: the curves of a run, written to RUN_FOLDER/tensorboard while it trains.

Show them with `tensorboard --logdir RUN_FOLDER`. Needs `pip install 'unseen[track]'`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.callbacks.base import CALLBACKS, Callback, RunEnd
from unseen.errors import UsageError
from unseen.runs.folder import RunFolder
from unseen.runs.reader import rounds_trained
from unseen.runs.records import Record

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@CALLBACKS.register("tensorboard")
class TensorBoard(Callback):
    """Writes loss, metrics, diagnostics, client distances, traffic and time of a run for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "tracking with tensorboard needs an extra: pip install 'unseen[track]'"
            ) from error
        self._make_writer, self._files = SummaryWriter, RunFolder(folder)
        self._opened: SummaryWriter | None = None

    def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
        """Open the log; on resume, steps from `first_round` on are replaced, not repeated."""
        purge = first_round if first_round > 1 else None
        self._opened = self._make_writer(str(self._files.tensorboard), purge_step=purge)
        if purge is None and self._files.config.is_file():
            text = self._files.config.read_text(encoding="utf-8")
            self._opened.add_text("configuration", "    " + text.replace("\n", "\n    "), 0)

    def on_record(self, record: Record) -> None:
        """Write the scalars of a round or an evaluation."""
        if self._opened is None or record["event"] not in ("round", "evaluation"):
            return
        scalars = round_scalars if record["event"] == "round" else evaluation_scalars
        for name, value in scalars(record):
            self._opened.add_scalar(name, value, record["round"])
        self._opened.flush()

    def on_train_end(self, end: RunEnd) -> None:
        """Add the report's score curves, and close the log."""
        if self._opened is None:
            return
        step = rounds_trained(end.result)
        for name, image in end.figures().items():
            self._opened.add_image(name, _pixels(image), step, dataformats="HWC")
        self._opened.close()
        self._opened = None


def round_scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the tags and values of a round record."""
    for name, value in (
        ("train/loss", record.get("loss")),
        ("train/samples", record.get("samples")),
        ("traffic/bytes_up", record.get("bytes_up")),
        ("traffic/bytes_down", record.get("bytes_down")),
        ("time/round_seconds", record.get("seconds")),
    ):
        yield from _numbers(name, value)
    for part in ("diagnostics", "distances", "protection"):
        yield from _numbers(part, record.get(part))


def evaluation_scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the tags and values of an evaluation record: every metric per split and domain."""
    for score in record["scores"]:
        for metric, value in score["metrics"].items():
            yield from _numbers(f"{metric}/{score['split']}/{score['domain']}", value)
    yield from _numbers("time/evaluation_seconds", record.get("seconds"))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield every finite number in a value, below a tag per key; texts and missing values are skipped."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{name}/{key}", item)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _numbers(f"{name}/{position}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield name, float(value)


def _pixels(png: bytes) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))
