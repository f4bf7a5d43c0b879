"""A whole run: from a configuration to a folder with records, result, model and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch

from unseen import __version__
from unseen.callbacks.base import Callback, CallbackList, Callbacks, RunEnd
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.engine import Engine, Schedule, ServerLoop, make_engine
from unseen.errors import UsageError
from unseen.federation import clients_per_round
from unseen.fileio import write_json
from unseen.report import write_report
from unseen.report.curves import score_curves
from unseen.report.png import to_png
from unseen.runner.finalize import final_record, make_result
from unseen.runner.prepare import Setup, prepare_run
from unseen.runner.start_record import left_beforehand
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.client_state import StateStore
from unseen.runs.folder import RunFolder
from unseen.runs.reader import read_run
from unseen.runs.records import Records
from unseen.serving import SavedModel, load_model, save_model
from unseen.serving.saved_model import ModelCard

EngineMaker = Callable[[Setup, StateStore], Engine]
LISTED_CLIENTS = 1000
"""Runs with more clients do not list every one of them in the records."""


@dataclass(frozen=True)
class RunResult:
    """What a run left behind: `values` is the content of its result.json."""

    folder: Path
    values: dict[str, Any]

    @property
    def metrics(self) -> dict[str, Any]:
        """The result's metrics, `metrics["target"]` first of all."""
        return cast(dict[str, Any], self.values["metrics"])

    @cached_property
    def model(self) -> SavedModel:
        """The trained model, loaded on first use."""
        return load_model(self.folder)

    def as_run_end(self) -> RunEnd:
        """Describe the finished run for callbacks; its figures are drawn only when they are asked for."""
        return RunEnd(self.folder, self.values, partial(_score_figures, self.folder))


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
) -> RunResult:
    """Run (or, with `resume`, continue) the training that `config` describes, in the folder `out`.

    callbacks  what follows the run: one `Callback` or several
    data       samples already in memory, in place of those that the configuration names
    report     whether the page is written; `unseen report` writes it later
    engine     makes the engine, in place of those of this machine
    """
    following, folder = CallbackList(callbacks), RunFolder(out)
    if not (resume and folder.holds_run):
        folder.require_free()
    setup = prepare_run(config, data=data, progress=following.on_prepare)
    torch.set_num_threads(setup.workers.threads)
    for note in setup.notes:
        following.on_note(note)
    with folder.locked():
        if folder.holds_run:
            _require_same(setup.config, RunConfig.load(folder.config), folder)
        else:
            setup.config.save(folder.config)
        result = _Run(setup, folder, following, engine or engine_here, report=report).complete()
    following.on_train_end(result.as_run_end())
    return result


def engine_here(setup: Setup, states: StateStore) -> Engine:
    """Make the engine that works on this machine, with the set-up's workers."""
    return make_engine(
        setup.experiment,
        states,
        setup.workers,
        max_clients=_most_clients(setup),
    )


def _most_clients(setup: Setup) -> int:
    """How many clients a round may have."""
    experiment, fraction = setup.experiment, setup.config.fraction
    if fraction < 1 and experiment.protection.draws_clients:
        return len(experiment.federation)
    return clients_per_round(len(experiment.federation), fraction)


class _Run:
    """One run in its folder: opens or continues it, goes through its rounds, closes it."""

    def __init__(
        self, setup: Setup, folder: RunFolder, callbacks: Callback, make: EngineMaker, *, report: bool
    ) -> None:
        self.setup, self.folder, self.callbacks, self.report = setup, folder, callbacks, report
        found = Checkpoint.load(folder.checkpoint) if folder.checkpoint.exists() else None
        if found is not None and found.run_id != setup.run_id:
            raise UsageError(f"{folder.path} holds a run on other data or weights: choose another --out")
        self.states = StateStore(folder.client_states, found.client_states if found else None)
        self.engine = make(setup, self.states)
        self.flat = self.engine.workspace.flat
        layout = self.flat.layout.digest
        if found is not None and found.layout != layout:
            self.engine.close()
            raise UsageError(
                f"{folder.path} was begun by a version of Unseen that lays this model's weights out in "
                "another order: choose another --out"
            )
        self.records = Records(folder.records, keep_bytes=found.records_bytes if found else 0)
        if found is None:
            start = self.flat.read().cpu()
            self.checkpoint = Checkpoint(setup.run_id, round=0, weights=start, selected=start, layout=layout)
            self._record("start", **self._start_facts())
        else:
            self.checkpoint = found
            self._record("resume", round=found.round, time=_now())

    def complete(self) -> RunResult:
        """Go through the rounds that are left, then evaluate, save and report."""
        config = self.setup.config
        try:
            rounds = ServerLoop(
                self.setup.experiment,
                self.engine,
                layout=self.flat.layout,
                schedule=Schedule(
                    rounds=config.rounds,
                    fraction=config.fraction,
                    evaluate_every=config.evaluate_every,
                    selection=config.selection,
                ),
                checkpoint=self.checkpoint,
                records=self.records,
                states=self.states,
                folder=self.folder,
                callbacks=self.callbacks,
            )
            rounds.run()
            return self._finish()
        finally:
            self.engine.close()

    def _finish(self) -> RunResult:
        """Evaluate the selected model in detail; write result, model and report."""
        selection, task = self.setup.config.selection, self.setup.experiment.data.task
        chosen = rounds_best(self.records, selection, task)
        self._record("final", **final_record(self.engine, self.checkpoint.selected, chosen))
        self.records.sync()
        outcome = make_result(self.records.entries, selection=selection, task=task)
        config = self.setup.config
        values = {
            "run_id": self.setup.run_id,
            "method": config.method,
            "model": config.model,
            "data": self.setup.experiment.data.name,
            "task": task,
            "held_out": list(config.hold_out),
            **self._validation_domains(),
            "seed": config.seed,
            "rounds": config.rounds,
            **outcome,
            "seconds": round(self.checkpoint.seconds, 3),
            "privacy": list(dict.fromkeys(line["kind"] for line in outcome["left"])),
            "protection": self._protection(),
        }
        tensors = self.flat.layout.tensors(self.checkpoint.selected)
        save_model(self.folder.model, tensors, self._card())
        write_json(self.folder.result, values)
        if self.report:
            write_report(self.folder.path)
        return RunResult(self.folder.path, values)

    def _protection(self) -> dict[str, Any]:
        """How updates were protected, in words and numbers."""
        protection = self.setup.experiment.protection
        spent = protection.privacy_spent(self.checkpoint.protection)
        return {"name": protection.name, "statement": protection.statement(), **spent}

    def _card(self) -> ModelCard:
        setup, experiment = self.setup, self.setup.experiment
        return ModelCard(
            model=cast(str, setup.config.model),
            method=setup.config.method,
            settings=dict(setup.config.settings),
            task=experiment.data.task,
            classes=experiment.data.classes,
            input_shape=setup.facts.input_shape,
            outputs=setup.facts.outputs,
            pixel_mean=experiment.prepare.normalise.mean,
            pixel_std=experiment.prepare.normalise.std,
            encoding=setup.encoding.to_dict() if setup.encoding else None,
            data=experiment.data.name,
            held_out=setup.config.hold_out,
            run_id=setup.run_id,
            sources=experiment.federation.sources,
            measured=experiment.data.is_measured,
        )

    def _start_facts(self) -> dict[str, Any]:
        data, federation = self.setup.experiment.data, self.setup.experiment.federation
        clients = [federation[position] for position in range(min(len(federation), LISTED_CLIENTS))]
        return {
            "time": _now(),
            "run_id": self.setup.run_id,
            "version": __version__,
            "parameters": len(self.flat.parameters),
            "data": {
                "name": data.name,
                "task": data.task,
                "classes": data.classes,
                "domains": data.domains,
                "input_shape": data.input_shape,
                "class_counts": data.class_counts(),
                "fingerprint": data.fingerprint,
                "notes": [
                    *data.notes,
                    *self.setup.experiment.network.notes,
                    *self.engine.notes,
                    *self.setup.notes,
                ],
                **({"groups": data.groups} if data.groups else {}),
            },
            "clients": [
                {
                    "name": client.name,
                    "domains": client.domains,
                    "train": len(client.train),
                    "validation": len(client.validation),
                    "test": len(client.test),
                }
                for client in clients
            ],
            "client_count": len(federation),
            "left": [*left_beforehand(self.setup), *self.engine.beforehand],
            "held_out": self.setup.config.hold_out,
            **self._validation_domains(),
        }

    def _validation_domains(self) -> dict[str, Any]:
        """Told only where there are such domains."""
        validate_on = self.setup.config.validate_on
        return {"validate_on": list(validate_on)} if validate_on else {}

    def _record(self, event: str, **values: Any) -> None:
        self.callbacks.on_record(self.records.append(event, **values))


def rounds_best(records: Records, selection: str, task: str) -> int:
    """The round that selection prefers."""
    from unseen.evaluation.selection import select

    best = select(records.entries, selection, task)
    assert best is not None, "the last round is always evaluated"
    return int(best["round"])


def _require_same(config: RunConfig, recorded: RunConfig, folder: RunFolder) -> None:
    """Refuse to continue a run as another one."""
    different = config.differences(recorded)
    if different:
        listed = "; ".join(
            f"{key}: {theirs!r} there, {mine!r} now" for key, (mine, theirs) in different.items()
        )
        raise UsageError(f"{folder.path} holds another run ({listed}): choose another --out")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
