"""`unseen bench`: methods x held-out domains x seeds, in parallel, stopped and continued at any time."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli import bench_options as shared
from unseen.cli.bench_request import default_out, grid_from
from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.grid import Grid
    from unseen.bench.runner import BenchOutcome
    from unseen.bench.workers import Placement

EXAMPLES = """Examples:

    unseen bench rotated-digits --methods fedavg,csac --hold-out all --seeds 3 --rounds 5 --out my_bench

    unseen bench --out my_bench --retry-failed

    unseen bench grid.toml --out my_bench --selection lodo --baseline fedavg

    unseen bench grid.toml --search 20 --workers 4
"""

_GRID = "What is compared"
_HOW = "How it is learnt (all jobs)"
_COMMON = (
    "rounds",
    "local_epochs",
    "batch_size",
    "optimiser",
    "lr",
    "image_size",
    "weights",
    "clients_per_domain",
    "evaluate_every",
    "validation",
    "test",
)
_OF_GRID = ("methods", "hold_out", "seeds", "models", "set_", "baseline", "selection", "search")


def bench_command(  # noqa: PLR0917 (one parameter an option)
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="GRID|DATA", help="A grid file (.toml), or data as in `unseen train`; neither goes on."
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, by commas: fedavg,csac.", rich_help_panel=_GRID)
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(help="Domains held out in turn, by commas; `all` for every one.", rich_help_panel=_GRID),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many (3), or which (0,1,2).", rich_help_panel=_GRID)
    ] = None,
    models: Annotated[str | None, typer.Option(help="Models, by commas.", rich_help_panel=_GRID)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.KEY=VALUE",
            help="A setting of a method (repeatable).",
            rich_help_panel=_GRID,
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The method that the others are tested against.", rich_help_panel=_GRID)
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(
            help="lodo: leave-one-domain-out cross-validation as well; it takes runs of its own. Source "
            "validation, last round and oracle are always shown.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            help="Trials of a random search for every method, chosen by source validation.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(rich_help_panel=_HOW)] = None,
    local_epochs: Annotated[int | None, typer.Option(rich_help_panel=_HOW)] = None,
    batch_size: Annotated[int | None, typer.Option(rich_help_panel=_HOW)] = None,
    optimiser: Annotated[str | None, typer.Option(help="sgd or adam.", rich_help_panel=_HOW)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_HOW)] = None,
    image_size: Annotated[int | None, typer.Option(rich_help_panel=_HOW)] = None,
    weights: Annotated[str | None, typer.Option(help="Initial weights.", rich_help_panel=_HOW)] = None,
    clients_per_domain: Annotated[int | None, typer.Option(rich_help_panel=_HOW)] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations.", rich_help_panel=_HOW)
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Part of a source kept for selection.", rich_help_panel=_HOW)
    ] = None,
    test: Annotated[
        float | None, typer.Option(help="Part of a source kept for in-domain accuracy.", rich_help_panel=_HOW)
    ] = None,
    data_root: shared.DataRoot = None,
    device: shared.Device = None,
    workers: shared.Workers = None,
    threads: shared.Threads = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Bench folder; made under runs/ if not given.", rich_help_panel=shared.WHERE),
    ] = None,
    work: shared.Work = None,
    latex: shared.Latex = None,
    csv: shared.Csv = None,
    retry_failed: shared.RetryFailed = False,
    collect: shared.Collect = False,
    as_json: shared.AsJson = False,
) -> None:
    """Compare methods on every held-out domain with several seeds, and write tables that can be trusted.

    Jobs run in parallel. Stop at any time; the same command goes on, and finished jobs are never repeated.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    given = {name.rstrip("_"): options[name] for name in _OF_GRID if name in options}
    given["common"] = {name: options[name] for name in _COMMON if name in options}
    if source is None and out is None:
        raise UsageError("name a grid file or data: unseen bench GRID.toml (see `unseen bench --help`)")
    from unseen.bench.fork_server import start_server

    if not collect:
        start_server()
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.workers import Placement
    from unseen.cli.bench_outputs import write_all

    place = out or default_out(str(source))
    grid = grid_from(source, place, given)
    folder = BenchFolder(place, work)
    where = Placement(threads=threads, device=device, data_root=data_root)
    again = shlex.join(["unseen", "bench", "--out", str(place), *(["--work", str(work)] if work else [])])
    outcome, grid = _run(
        grid, folder, where, workers=workers, retry=retry_failed, collect=collect, again=again
    )
    found = write_all(grid, folder, outcome, latex=latex, csv=csv)
    if as_json:
        print_json(found.values)
    else:
        found.print(results())
    if outcome.failed:
        for job, reason in outcome.failed:
            messages().print(f"failed: {job.name} ({folder.work / job.id}): {reason}", soft_wrap=True)
        many = f"{len(outcome.failed)} of {len(outcome.plan.jobs)} jobs failed"
        messages().print(f"{many}; try them again with:\n  {again} --retry-failed", soft_wrap=True)
        sys.exit(1)


bench_command.__doc__ = f"{bench_command.__doc__}\n\n{EXAMPLES}"


def _run(
    grid: Grid,
    folder: BenchFolder,
    where: Placement,
    *,
    workers: int | None,
    retry: bool,
    collect: bool,
    again: str,
) -> tuple[BenchOutcome, Grid]:
    """Run what is missing under the eyes of the user; Ctrl-C leaves with a line on how to go on."""
    from unseen.bench.runner import (
        bench_state,
        choose_workers,
        domains_of_results,
        known_domains,
        look_at_data,
        run_bench,
    )
    from unseen.cli.bench_view import BenchView
    from unseen.cli.waiting import LateBar

    console = messages()
    try:
        known = known_domains(grid, folder) or (domains_of_results(grid, folder) if collect else None)
        if known is None:
            with LateBar(console) as bar:
                known = look_at_data(grid, where, progress=bar)
        if collect:
            return bench_state(known, folder), known
        hands = choose_workers(workers, where)
        with BenchView(console, workers=hands) as view:
            outcome = run_bench(known, folder, workers=hands, where=where, retry_failed=retry, watcher=view)
        return outcome, known
    except KeyboardInterrupt:
        console.print(f"\nStopped. Finished jobs and rounds are kept; go on with:\n  {again}", soft_wrap=True)
        sys.exit(INTERRUPTED)
