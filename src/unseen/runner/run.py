"""Run a configuration: from data to a folder with records, result, model and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch

from unseen.aggregation import make_average
from unseen.callbacks.base import Callback, CallbackList, Callbacks, RunEnd
from unseen.callbacks.html_display import find_display
from unseen.callbacks.run_status import DisplayProgress
from unseen.checksums import seal
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.engine import Engine, Schedule, ServerLoop, make_engine
from unseen.errors import UsageError
from unseen.frames import make_frame
from unseen.report import write_report
from unseen.report.curves import score_curves
from unseen.report.model_card import write_model_card
from unseen.report.notebook import run_html, score_rows
from unseen.report.png import to_png
from unseen.runner.effort import with_effort
from unseen.runner.finalize import finalize
from unseen.runner.merging_checks import merging_plan
from unseen.runner.prepare import Setup, TableFitter, prepare_run
from unseen.runner.start_record import now, start_record
from unseen.runs.checkpoint import StateStore
from unseen.runs.energy import EnergyMeter
from unseen.runs.folder import RunFolder, default_folder
from unseen.runs.reader import read_run
from unseen.runs.records import Record
from unseen.serving import SavedModel, load_model

EngineMaker = Callable[[Setup, StateStore], Engine]


@dataclass(frozen=True)
class RunResult:
    """A finished run; `values` is the content of its result.json."""

    folder: Path
    values: dict[str, Any]

    def __repr__(self) -> str:
        """Name the folder; a notebook shows the scores."""
        return f"RunResult({str(self.folder)!r})"

    @property
    def metrics(self) -> dict[str, Any]:
        """The result's metrics; `metrics["target"]` is the main one."""
        return cast(dict[str, Any], self.values["metrics"])

    @cached_property
    def model(self) -> SavedModel:
        """The trained model, loaded on first use."""
        return load_model(self.folder)

    def frame(self, library: str | None = None) -> Any:
        """Return a data frame with one line per evaluated round, domain and split.

        library  "pandas" or "polars"; if not given, pandas where it is installed, else polars
        """
        return make_frame(score_rows(read_run(self.folder)), library=library)

    def _repr_html_(self) -> str:
        """Show the result in a notebook: the headline, and the scores under every selection rule."""
        return run_html(read_run(self.folder))

    def as_run_end(self) -> RunEnd:
        """Describe the finished run for callbacks; its figures are drawn only on request."""
        return RunEnd(self.folder, self.values, partial(_score_figures, self.folder))


class _Metering(Callback):
    """Keeps the energy used so far, whenever something is recorded."""

    def __init__(self, meter: EnergyMeter) -> None:
        self._meter = meter

    def on_record(self, record: Record) -> None:
        """Write what was used so far."""
        self._meter.save()


def _score_figures(folder: Path) -> dict[str, bytes]:
    """Draw the report's score curves as PNG images, one per headline metric."""
    panels = score_curves(read_run(folder))
    return {f"scores {label}".strip(): to_png(chart) for label, chart in panels.items()}


def run(
    config: RunConfig,
    *,
    out: Path,
    resume: bool = False,
    callbacks: Callbacks = None,
    data: DataSet | None = None,
    report: bool = True,
    engine: EngineMaker | None = None,
    fit_table: TableFitter | None = None,
) -> RunResult:
    """Run (or, with `resume`, continue) the training that `config` describes, in the folder `out`.

    callbacks  one `Callback` or several
    data       samples already in memory, in place of those that the configuration names
    report     whether page and model card are written; `unseen report` and `unseen card` write them later
    engine     factory of the engine, in place of those of this machine
    fit_table  fits the encoding of a table whose rows are elsewhere
    """
    following, folder = CallbackList(callbacks), RunFolder(out)
    meter = EnergyMeter(folder.energy)
    if not (resume and folder.holds_run):
        folder.require_free()
    elif config.precision == "auto":
        config = config.resolved(precision=RunConfig.load_recorded(folder.config).precision)
    setup = prepare_run(config, data=data, progress=following.on_prepare, fit_table=fit_table)
    torch.set_num_threads(setup.workers.threads)
    for note in setup.notes:
        following.on_note(note)
    with folder.locked():
        if folder.holds_run:
            _require_same(setup.config, RunConfig.load_recorded(folder.config), folder)
        else:
            setup.config.save(folder.config)
        with ServerLoop(
            setup.experiment,
            folder,
            Schedule(
                rounds=setup.config.rounds,
                fraction=setup.config.fraction,
                evaluate_every=setup.config.evaluate_every,
                evaluate_clients=setup.config.evaluate_clients,
                selection=setup.config.selection,
                server_lr=setup.config.server_lr,
                average=make_average(setup.config.average, setup.config.average_settings),
                patience=setup.config.patience,
                merging=merging_plan(setup.config),
            ),
            run_id=setup.run_id,
            make_engine=partial(engine or _make_local_engine, setup),
            callbacks=CallbackList([_Metering(meter), following]),
        ) as loop:
            if loop.resumed:
                loop.record("resume", round=loop.checkpoint.round, time=now())
            else:
                loop.record("start", **start_record(setup, loop.engine))
            loop.run()
            result = RunResult(out, finalize(setup, loop))
        seal(folder.path, folder.records.name)
        meter.save(now=True)
        if report:
            write_report(out)
            write_model_card(out)
    following.on_train_end(result.as_run_end())
    return result


def _make_local_engine(setup: Setup, states: StateStore) -> Engine:
    return make_engine(setup.experiment, states, setup.workers, max_clients=setup.max_clients)


def _require_same(config: RunConfig, recorded: RunConfig, folder: RunFolder) -> None:
    """Refuse to continue a run as another one."""
    different = config.differences(recorded)
    if different:
        listed = "; ".join(
            f"{key}: {theirs!r} there, {mine!r} now" for key, (mine, theirs) in different.items()
        )
        raise UsageError(f"{folder.path} contains another run ({listed}): choose another --out")


def train(
    data: str | Path | DataSet,
    *,
    hold_out: str | Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Callbacks = None,
    progress: bool | None = None,
    **options: Any,
) -> RunResult:
    """Train on all domains but the held-out ones, and evaluate the model on those.

    data      a named data set, a folder domain/class/image, a table file, or what `from_arrays` made
    hold_out  one domain or several; needed unless the data set has an official split
    out       run folder; created under runs/ if not given
    resume    continue the run in `out`
    callbacks one `Callback` or several; a function is called with every event of the records
    progress  whether it is shown; if not given, in notebooks and on terminals
    options   every field of `RunConfig`, named as on the command line: method, settings, model, rounds, ...

    Returns what the command writes: `values` (result.json), `metrics`, `folder`, and `model` to use at once.
    """
    held = data if isinstance(data, DataSet) else None
    config = RunConfig.from_mapping(
        with_effort({"data": held.name if held else str(data), "hold_out": hold_out, **options}, data=held)
    )
    folder = Path(out) if out is not None else default_folder(config, resume=resume)
    following, display = CallbackList(callbacks).callbacks, find_display(progress)
    with DisplayProgress(display, label=config.method) if display else nullcontext() as shown:
        listening = [*following, shown] if shown else following
        return run(config, out=folder, resume=resume, callbacks=listening, data=held)
