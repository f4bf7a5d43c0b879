"""`unseen.bench(...)`: a bench from Python, resumable like the one of the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unseen.bench.bench_files import write_finished
from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import BenchJob
from unseen.bench.bench_result import BenchResult, load_bench
from unseen.bench.code_changes import require_same_code
from unseen.bench.grid import Grid
from unseen.bench.row_weights import with_named_weights
from unseen.bench.runner import BenchOutcome, choose_workers, inspect_data, known_domains, run_bench
from unseen.bench.workers import BenchCallback, Placement, Progress
from unseen.callbacks.html_display import Display, find_display
from unseen.data import DataSet
from unseen.data.saved_arrays import save_arrays
from unseen.errors import UnseenError, UsageError

JobFunction = Callable[[Mapping[str, Any]], object]
"""Called with an event ("start", "end" or "error"), the job's id, label, held_out, seed, and a reason."""


def bench(
    data: str | Path | DataSet | None = None,
    *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    hold_out: str | Sequence[str] | None = None,
    seeds: int | Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    baseline: str | None = None,
    selection: str | None = None,
    search: int | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    threads: int = 1,
    retry_failed: bool = False,
    callbacks: BenchCallback | JobFunction | Iterable[BenchCallback | JobFunction] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> BenchResult:
    """Run methods x held-out domains x seeds; jobs that `out` already has are not repeated.

    data      a named data set, a folder, a table, what `from_arrays` made, or a grid file (.toml); without it
              the bench in `out` is resumed
    methods   names, or a mapping from labels to options: {"strong": {"method": "fedprox", "lr": 1.0}}
    hold_out  domains held out in turn; every one if not given
    seeds     how many (3), or which ((0, 4))
    out       bench folder; named by the data, below runs/, if not given
    workers   jobs in parallel; one per core if not given
    callbacks `BenchCallback` objects, or functions of an event, see `JobFunction`
    progress  whether it is shown; if not given, in notebooks and on terminals
    options   fields of `RunConfig` for all runs: rounds, lr, ...
    """
    name = data.name if isinstance(data, DataSet) else Path(str(data)).stem
    if data is None and out is None:
        raise UsageError("name data or a grid file, or with out=... the bench to resume")
    folder = BenchFolder(Path(out) if out is not None else Path("runs") / f"bench-{name}")
    source = str(save_arrays(data, folder.path / "data")) if isinstance(data, DataSet) else data
    given = {
        "methods": methods,
        "hold_out": hold_out,
        "seeds": list(range(seeds)) if isinstance(seeds, int) else seeds,
        "models": models,
        "baseline": baseline,
        "selection": selection,
        "search": search,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    grid = _make_grid(source, name, folder, changes=changes, options=options)
    require_same_code(grid, folder)
    with _Callbacks(callbacks, progress) as following:
        placement = Placement(threads=threads)
        grid = known_domains(grid, folder) or inspect_data(grid, placement)
        outcome = run_bench(
            grid,
            folder,
            workers=choose_workers(workers, placement),
            placement=placement,
            retry_failed=retry_failed,
            callback=following,
        )
    write_finished(grid, folder, outcome)
    _report_failures(outcome)
    return load_bench(folder.path)


def _make_grid(
    source: str | Path | None,
    name: str,
    folder: BenchFolder,
    changes: dict[str, Any],
    options: dict[str, Any],
) -> Grid:
    """Read the grid of a file or of the bench folder, changed by keywords, or make one of keywords alone."""
    stored = folder.grid if source is None else Path(source)
    if source is None or stored.suffix == ".toml":
        if not stored.exists():
            raise UsageError(f"no such grid file: {stored}; give data=..., or the out=... of a bench")
        grid = Grid.from_toml(stored)
        methods = changes.pop("methods", list(grid.methods))
        labels = methods if isinstance(methods, Mapping) else {label: grid.methods.get(label, {})
                                                              for label in _names(methods)}  # fmt: skip
        values = dict(vars(grid))
        return Grid.from_mapping(
            {**values, **changes, "methods": labels, "common": {**grid.common, **options}}
        )
    if "methods" not in changes:
        raise UsageError("name the methods: methods=['fedavg', 'csac'] (see `unseen list methods`)")
    methods = changes.pop("methods")
    labels = dict(methods) if isinstance(methods, Mapping) else {label: {} for label in _names(methods)}
    common = {"data": str(source), **options}
    values = {"hold_out": "all", "title": name, **changes, "common": common, "methods": labels}
    grid = Grid.from_mapping(values)
    return replace(grid, common=with_named_weights(grid.common, grid.methods))


def _names(methods: str | Iterable[str]) -> list[str]:
    return [methods] if isinstance(methods, str) else list(methods)


def _report_failures(outcome: BenchOutcome) -> None:
    """Warn of failed jobs; without any result there is nothing to return, so that is an error."""
    if not outcome.failed:
        return
    job, reason = outcome.failed[0]
    many = f"{len(outcome.failed)} of {len(outcome.plan.jobs)} jobs failed, {job.name}: {reason}"
    text = f"{many}; retry_failed=True tries them again"
    if not outcome.results:
        raise UnseenError(text)
    warnings.warn(text, stacklevel=3)


class _Callbacks(BenchCallback):
    """A caller's callbacks as one, and the line of progress; one that raises is dropped with a warning."""

    def __init__(
        self,
        callbacks: BenchCallback | JobFunction | Iterable[BenchCallback | JobFunction] | None,
        progress: bool | None,
    ) -> None:
        if isinstance(callbacks, BenchCallback) or callable(callbacks):
            callbacks = (callbacks,)
        self._callbacks = [_as_callback(each) for each in callbacks or ()]
        self._display = find_display(progress) or Display()
        self._done = self._failed = self._planned = 0
        self._running: dict[str, tuple[BenchJob, Progress | None]] = {}

    def __enter__(self) -> _Callbacks:
        self._display.show("preparing")
        return self

    def __exit__(self, *_: object) -> None:
        self._display.clear()

    def on_plan(
        self,
        waiting: Sequence[BenchJob],
        finished: Sequence[BenchJob],
        failed: Sequence[BenchJob],
        seconds: Mapping[str, float],
    ) -> None:
        """Count the jobs."""
        self._done, self._failed = len(finished), len(failed)
        self._planned = len(waiting) + len(finished) + len(failed)
        self._call(lambda each: each.on_plan(waiting, finished, failed, seconds))

    def on_job_start(self, job: BenchJob) -> None:
        """Pass on."""
        self._running[job.id] = (job, None)
        self._call(lambda each: each.on_job_start(job))

    def on_job_progress(self, job: BenchJob, progress: Progress) -> None:
        """Pass on."""
        self._running[job.id] = (job, progress)
        self._call(lambda each: each.on_job_progress(job, progress))

    def on_job_end(self, job: BenchJob) -> None:
        """Pass on."""
        self._running.pop(job.id, None)
        self._done += 1
        self._call(lambda each: each.on_job_end(job))

    def on_job_error(self, job: BenchJob, reason: str) -> None:
        """Pass on."""
        self._running.pop(job.id, None)
        self._failed += 1
        self._call(lambda each: each.on_job_error(job, reason))

    def on_tick(self) -> None:
        """Show how far the bench is."""
        parts = [f"{self._done} of {self._planned} jobs done"]
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [
            job.name + (f" round {progress.round}/{progress.rounds}" if progress else "")
            for job, progress in self._running.values()
        ]
        self._display.show(", ".join(parts), part=self._done / max(self._planned, 1))
        self._call(lambda each: each.on_tick())

    def _call(self, call: Callable[[BenchCallback], None]) -> None:
        for each in tuple(self._callbacks):
            try:
                call(each)
            except UnseenError:
                raise
            except Exception as error:
                self._callbacks.remove(each)
                warnings.warn(
                    f"{type(each).__name__} failed and is dropped ({error})",
                    stacklevel=2,
                )


class _FunctionCallback(BenchCallback):
    """Calls a function for every job that starts, ends or fails."""

    def __init__(self, function: JobFunction) -> None:
        self._function = function

    def on_job_start(self, job: BenchJob) -> None:
        """Tell of the start."""
        self._tell("start", job)

    def on_job_end(self, job: BenchJob) -> None:
        """Tell of the end."""
        self._tell("end", job)

    def on_job_error(self, job: BenchJob, reason: str) -> None:
        """Tell of the failure."""
        self._tell("error", job, reason)

    def _tell(self, event: str, job: BenchJob, reason: str = "") -> None:
        about = {name: getattr(job, name) for name in ("id", "label", "held_out", "seed")}
        self._function({"event": event, **about, "reason": reason})


def _as_callback(given: BenchCallback | JobFunction) -> BenchCallback:
    if isinstance(given, BenchCallback):
        return given
    if callable(given) and not isinstance(given, type):
        return _FunctionCallback(given)
    raise UsageError(f"callbacks takes BenchCallback objects and functions, not {given!r}")
