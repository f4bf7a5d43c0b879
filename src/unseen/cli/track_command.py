"""`unseen track`: send finished, interrupted or running runs to a tracker, from their records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import with_plugins
from unseen.errors import UnseenError, UsageError

if TYPE_CHECKING:
    from unseen.callbacks.base import RunEnd
    from unseen.runs.reader import Run

SERVERS = {"mlflow": "MLFLOW_TRACKING_URI", "wandb": "WANDB_BASE_URL", "trackio": "TRACKIO_SERVER_URL"}
PROJECTS = {"mlflow": "MLFLOW_EXPERIMENT_NAME", "wandb": "WANDB_PROJECT", "trackio": "TRACKIO_PROJECT"}
"""The variables that `--server` and `--project` set for each tracker."""


@dataclass(frozen=True)
class _Source:
    """A run to track; `name` and `group` are empty outside a bench."""

    folder: Path
    name: str = ""
    group: str = ""


@with_plugins
def track_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders or bench folders.")],
    *,
    to: Annotated[str, typer.Option(help="The tracker: mlflow, tensorboard, wandb, trackio or a plugin's.")],
    server: Annotated[
        str | None,
        typer.Option(
            help="Address of the tracker's server, or MLflow's folder; else the tracker's variables."
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Project (of MLflow: experiment) to track in, by default unseen.")
    ] = None,
    anew: Annotated[
        bool, typer.Option("--new", help="Start new tracked runs, also for runs that were tracked before.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was sent as JSON.")] = False,
) -> None:
    """Send runs to a tracker after the fact, from their records; what it already has is not sent again.

    A run that is not finished is sent as far as it is; the same command later sends the rest.

    Examples:

        unseen track demo/fedavg --to mlflow

        unseen track demo/fedavg demo/deepall --to mlflow --server http://127.0.0.1:5000

        unseen track my_bench --to tensorboard
    """
    from unseen.callbacks.base import CALLBACKS
    from unseen.cli.progress import DelayedProgressBar

    CALLBACKS.check(to)
    _set_variable(SERVERS, to, server, option="--server")
    _set_variable(PROJECTS, to, project, option="--project")
    sources = [source for folder in runs for source in _sources(folder)]
    sent: list[dict[str, Any]] = []
    with DelayedProgressBar(messages()) as progress:
        for done, source in enumerate(sources):
            progress(f"tracking {source.folder.name}", done, len(sources))
            sent.append(_track(source, to, anew=anew))
    if as_json:
        print_json(sent)
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table("run", "tracked run", "records sent", "state")
    for row in sent:
        table.add_row(*(escape(str(row[key])) for key in ("folder", "name", "records", "state")))
    results().print(table)
    for place in dict.fromkeys(row["place"] for row in sent):
        results().print(f"{to}: {place}", soft_wrap=True, markup=False)


def _set_variable(variables: dict[str, str], to: str, value: str | None, *, option: str) -> None:
    """Set the variable that a tracker reads, if its option is given."""
    if value is None:
        return
    if to not in variables:
        raise UsageError(f"{option} is for {', '.join(variables)}, not for {to}")
    os.environ[variables[to]] = value
    if to == "wandb" and option == "--server":
        os.environ.setdefault("WANDB_MODE", "online")


def _sources(folder: Path) -> Iterator[_Source]:
    """Yield a run folder, or every job of a bench that was started."""
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.bench_result import load_bench
    from unseen.runs.folder import RunFolder

    bench = BenchFolder(folder)
    if not bench.grid.is_file():
        yield _Source(folder)
        return
    jobs = [path for path in sorted(bench.work.glob("*")) if RunFolder(path).holds_run]
    if not jobs:
        raise UsageError(f"{folder} is a bench without job folders below {bench.work}: nothing to track")
    known = {each.job: each for each in load_bench(folder).results} if bench.results.is_file() else {}
    several = len({each.model for each in known.values()}) > 1
    for path in jobs:
        job = known.get(path.name)
        parts = [] if job is None else [job.label, job.held_out, *([job.model] if several else []), job.seed]
        yield _Source(path, "/".join(map(str, parts)), folder.resolve().name)


def _track(source: _Source, to: str, *, anew: bool) -> dict[str, Any]:
    """Replay one run into a tracker and say what was sent."""
    from unseen.callbacks.base import CALLBACKS, describe_error
    from unseen.callbacks.tracked_values import describe_run
    from unseen.callbacks.tracking import Tracking, forget, replay
    from unseen.runs.reader import read_run

    run = read_run(source.folder)
    if anew:
        forget(source.folder, to)
    callback = CALLBACKS[to](source.folder)
    if isinstance(callback, Tracking):
        callback.name, callback.group = source.name, source.group
    try:
        replay(run, callback, _end(run))
    except UnseenError:
        raise
    except Exception as error:
        raise UnseenError(f"{to}: {source.folder} could not be tracked ({describe_error(error)})") from error
    tracking = callback if isinstance(callback, Tracking) else None
    return {
        "folder": str(source.folder),
        "name": describe_run(run, name=source.name).name,
        "records": tracking.sent if tracking else len(run.records),
        "state": "finished" if run.finished else "unfinished",
        "place": tracking.tracker.place if tracking else str(source.folder),
    }


def _end(run: Run) -> RunEnd | None:
    """Describe the end of a run for callbacks; None if it is not finished."""
    if run.result is None:
        return None
    from unseen.runner.run import RunResult

    return RunResult(run.folder, run.result).as_run_end()
