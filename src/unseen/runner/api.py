"""The calls for Python: what the command line does, with the same names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unseen.callbacks.base import Callbacks
from unseen.config import RunConfig
from unseen.data import DataSet, from_arrays
from unseen.runner.run import RunResult, run
from unseen.runs.folder import default_folder
from unseen.serving import load_model

__all__ = ["RunResult", "from_arrays", "load_model", "train"]


def train(
    data: str | Path | DataSet,
    *,
    hold_out: str | Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Callbacks = None,
    **options: Any,
) -> RunResult:
    """Train on all domains but the held-out ones and judge the model on those.

    data      a named data set, a folder domain/class/image, a table file, or what `from_arrays` made
    hold_out  one domain or several; needed unless the data set has a split of its own
    out       run folder; made under runs/ if not given
    resume    go on with the run in `out`
    callbacks what follows the run: one `Callback` or several
    options   every field of `RunConfig`, named as on the command line: method, settings, model, rounds, ...

    Returns what the command writes: `values` (result.json), `metrics`, `folder`, and `model` to use at once.
    """
    held = data if isinstance(data, DataSet) else None
    config = RunConfig.from_mapping(
        {"data": held.name if held else str(data), "hold_out": hold_out, **options}
    )
    folder = Path(out) if out is not None else default_folder(config, resume=resume)
    return run(config, out=folder, resume=resume, callbacks=callbacks, data=held)
