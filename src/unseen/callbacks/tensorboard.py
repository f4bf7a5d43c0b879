"""TensorBoard: the curves of a run, written to RUN_FOLDER/tensorboard while it trains.

Show them with `tensorboard --logdir RUN_FOLDER`. Needs `pip install 'unseen[track]'`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.callbacks.base import CALLBACKS
from unseen.callbacks.tracked_values import VALUES, TrackedRun
from unseen.callbacks.tracking import Ending, Moment, Tracker, Tracking, Trail
from unseen.errors import UsageError
from unseen.runs.folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    """Writes loss, metrics, diagnostics, client distances, traffic and time of a run for TensorBoard."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                "tracking with tensorboard needs an extra: pip install 'unseen[track]'"
            ) from error
        self._make_writer, self._files = SummaryWriter, RunFolder(folder)
        self._opened: SummaryWriter | None = None

    def open(self, run: TrackedRun, trail: Trail) -> Trail:
        """Open the log; what it has after the last round that is complete there is written again."""
        there = self._files.tensorboard.is_dir()
        complete = min(trail.rounds.get(event, -1) for event in VALUES) if trail.id and there else -1
        purge = complete + 1 if there else None
        self._opened = self._make_writer(str(self._files.tensorboard), purge_step=purge)
        if complete >= 0:
            return Trail(run.name, dict.fromkeys(VALUES, complete), trail.finished)
        text = self._files.config.read_text(encoding="utf-8")
        self._opened.add_text("configuration", "    " + text.replace("\n", "\n    "), 0)
        return Trail(run.name)

    def log(self, values: Mapping[str, float], moment: Moment) -> None:
        """Write the scalars of a record."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, moment.round, walltime=moment.time)
        self._writer.flush()

    def finish(self, ending: Ending, moment: Moment) -> None:
        """Add the result and the report's score curves."""
        self.log(ending.values, moment)
        for name, image in ending.figures().items():
            self._writer.add_image(name, _pixels(image), moment.round, dataformats="HWC")

    def close(self) -> None:
        """Close the log."""
        self._writer.close()

    @property
    def _writer(self) -> SummaryWriter:
        assert self._opened is not None, "opened first"
        return self._opened


@CALLBACKS.register("tensorboard")
def track_with_tensorboard(folder: Path) -> Tracking:
    """Writes the run for TensorBoard, into RUN/tensorboard."""
    return Tracking(TensorBoard(folder), folder)


def _pixels(png: bytes) -> Any:
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"))
