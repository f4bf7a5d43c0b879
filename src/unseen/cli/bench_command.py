"""`unseen bench`: methods x held-out domains x seeds, in parallel; can be stopped and resumed at any time."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.cli.live_command import LiveOption, live_page
from unseen.cli.options import option_group, parse_settings, run_options, with_options, with_plugins
from unseen.config_options import EXECUTION
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.run_identity import WHERE

if TYPE_CHECKING:
    from unseen.bench.bench_files import Outputs
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.grid import Grid
    from unseen.bench.runner import BenchOutcome
    from unseen.bench.workers import Placement


_GRID = "Comparison"
_ALL_JOBS = "Options of every run"
OF_THE_GRID = ("hold_out", "seed", "method", "model", "settings", "selection", *WHERE)
"""`RunConfig` fields that a bench does not take as one value for all jobs."""


@dataclass(frozen=True)
class BenchRunOptions:
    """Where the jobs of a bench run and where its results are written."""

    data_root: Annotated[
        str | None,
        typer.Option(help="Folder of the named data sets.", envvar="UNSEEN_DATA", rich_help_panel=EXECUTION),
    ] = None
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=EXECUTION)] = (
        None
    )
    workers: Annotated[
        int | None,
        typer.Option(help="Jobs in parallel; one per core if not given.", rich_help_panel=EXECUTION),
    ] = None
    threads: Annotated[int, typer.Option(help="Threads per job.", rich_help_panel=EXECUTION)] = 1
    out: Annotated[
        Path | None,
        typer.Option(help="Bench folder; created under runs/ if not given.", rich_help_panel=EXECUTION),
    ] = None
    work: Annotated[
        Path | None, typer.Option(help="Folder of the jobs, if not OUT/jobs.", rich_help_panel=EXECUTION)
    ] = None
    latex: Annotated[
        Path | None,
        typer.Option(help="File for the LaTeX tables, if not OUT/table.tex.", rich_help_panel=EXECUTION),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(help="File for the CSV table, if not OUT/table.csv.", rich_help_panel=EXECUTION),
    ] = None
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Retry failed jobs.", rich_help_panel=EXECUTION)
    ] = False
    live: LiveOption = False
    collect: Annotated[
        bool,
        typer.Option(
            "--collect", help="Run nothing; write the outputs of finished jobs.", rich_help_panel=EXECUTION
        ),
    ] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON.", rich_help_panel=EXECUTION)
    ] = False


@with_plugins
@with_options(common=run_options(without=OF_THE_GRID, panel=_ALL_JOBS), jobs=option_group(BenchRunOptions))
def bench_command(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="GRID|DATA",
            help="A grid file (.toml), or data as in `unseen train`; without either, --out is resumed.",
        ),
    ] = None,
    *,
    methods: Annotated[
        str | None, typer.Option(help="Methods, separated by commas: fedavg,csac.", rich_help_panel=_GRID)
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(
            help="Domains held out in turn, separated by commas; `all` for every one.", rich_help_panel=_GRID
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many (3), or which (0,1,2).", rich_help_panel=_GRID)
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Models, separated by commas.", rich_help_panel=_GRID)
    ] = None,
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
            help="lodo: leave-one-domain-out cross-validation as well; it takes additional runs. Source "
            "validation, last round and oracle are always shown.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            help="Trials of a random search per method, selected by source validation.",
            rich_help_panel=_GRID,
        ),
    ] = None,
    common: dict[str, Any],
    jobs: BenchRunOptions,
) -> None:
    """Compare methods on every held-out domain with several seeds; write tables with significance tests.

    Jobs run in parallel. Stop at any time; the same command resumes, and finished jobs are never repeated.

    Examples:

        unseen bench rotated-digits --methods fedavg,csac --hold-out all --seeds 3 --rounds 5 --out my_bench

        unseen bench --out my_bench --retry-failed

        unseen bench grid.toml --out my_bench --selection lodo --baseline fedavg

        unseen bench grid.toml --search 20 --workers 4
    """
    if source is None and jobs.out is None:
        raise UsageError("name a grid file or data: unseen bench GRID.toml (see `unseen bench --help`)")
    changes = {
        "methods": methods,
        "hold_out": hold_out,
        "seeds": seeds,
        "models": models,
        "set": set_,
        "baseline": baseline,
        "selection": selection,
        "search": search,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    place = jobs.out or default_out(str(source))
    run_grid(lambda: grid_from(source, place, {**given, "common": common}), place, jobs)


def run_grid(read_grid: Callable[[], Grid], place: Path, jobs: BenchRunOptions) -> None:
    """Run the missing jobs of a grid in the bench folder `place`, write its outputs and print them."""
    from unseen.bench import WORKERS
    from unseen.child_processes import start_fork_server

    if not jobs.collect:
        start_fork_server(WORKERS)
    from unseen.bench.bench_folder import BenchFolder

    grid, folder = read_grid(), BenchFolder(place, jobs.work)
    with live_page(jobs.live, folder.path, "bench", work=jobs.work):
        _run_and_write(grid, folder, jobs)


def _run_and_write(grid: Grid, folder: BenchFolder, jobs: BenchRunOptions) -> None:
    from unseen.bench.workers import Placement

    where = Placement(threads=jobs.threads, device=jobs.device, data_root=jobs.data_root)
    work = ["--work", str(jobs.work)] if jobs.work else []
    again = shlex.join(["unseen", "bench", "--out", str(folder.path), *work])
    outcome, grid = _run(grid, folder, where, jobs, again=again)
    found = write_all(grid, folder, outcome, latex=jobs.latex, csv=jobs.csv)
    if jobs.as_json:
        print_json(found.values)
    else:
        found.print(results())
    if outcome.failed:
        for job, reason in outcome.failed:
            messages().print(f"failed: {job.name} ({folder.work / job.id}): {reason}", soft_wrap=True)
        many = f"{len(outcome.failed)} of {len(outcome.plan.jobs)} jobs failed"
        messages().print(f"{many}; try them again with:\n  {again} --retry-failed", soft_wrap=True)
        sys.exit(1)


def _run(
    grid: Grid, folder: BenchFolder, where: Placement, jobs: BenchRunOptions, *, again: str
) -> tuple[BenchOutcome, Grid]:
    """Run the missing jobs with live progress; Ctrl-C stops and prints how to resume."""
    from unseen.bench.runner import (
        bench_state,
        choose_workers,
        inspect_data,
        known_domains,
        result_domains,
        run_bench,
    )
    from unseen.bench.subtractable_sums import warn_of_differences
    from unseen.cli.bench_progress import BenchProgress
    from unseen.cli.progress import DelayedProgressBar

    console = messages()
    try:
        known = known_domains(grid, folder) or (result_domains(grid, folder) if jobs.collect else None)
        if known is None:
            with DelayedProgressBar(console) as bar:
                known = inspect_data(grid, where, progress=bar)
        if jobs.collect:
            return bench_state(known, folder), known
        for warning in warn_of_differences(known):
            console.print(warning, style="yellow", soft_wrap=True, markup=False)
        parallel = choose_workers(jobs.workers, where)
        with BenchProgress(console, workers=parallel) as view:
            outcome = run_bench(
                known,
                folder,
                workers=parallel,
                placement=where,
                retry_failed=jobs.retry_failed,
                callback=view,
            )
        return outcome, known
    except KeyboardInterrupt:
        console.print(
            f"\nStopped. Finished jobs and rounds are kept; resume with:\n  {again}", soft_wrap=True
        )
        sys.exit(INTERRUPTED)


def default_out(source: str) -> Path:
    """Return the folder of a bench for which none was named."""
    return Path("runs") / f"bench-{Path(source).stem}"


def grid_from(source: str | None, out: Path, given: Mapping[str, Any]) -> Grid:
    """Read a grid file or the grid of a bench folder, or build a grid from options for named data.

    Given options override the file.
    """
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.grid import Grid
    from unseen.bench.row_weights import with_named_weights

    if source is None:
        stored = BenchFolder(out).grid
        if not stored.exists():
            raise UsageError(
                f"{out} contains no bench to resume; start one: unseen bench GRID.toml --out {out}"
            )
        return changed(Grid.from_toml(stored), given)
    if source.endswith(".toml"):
        if not Path(source).exists():
            raise UnseenError(f"no such grid file: {source}")
        return changed(Grid.from_toml(Path(source)), given)
    if "methods" not in given:
        raise UsageError(
            "name the methods: unseen bench DATA --methods fedavg,csac (see `unseen list methods`)"
        )
    empty = Grid(common={"data": source}, methods={"fedavg": {}}, hold_out=("all",), title=Path(source).name)
    grid = changed(empty, given)
    return replace(grid, common=with_named_weights(grid.common, grid.methods))


def changed(grid: Grid, given: Mapping[str, Any]) -> Grid:
    """Override entries of a grid by options."""
    common = {**grid.common, **given.get("common", {})}
    methods = dict(grid.methods)
    if "methods" in given:
        wanted = words(given["methods"])
        methods = {label: methods.get(label, {}) for label in wanted}
    for key, value in parse_settings(given.get("set", [])).items():
        label, dot, name = key.partition(".")
        if not dot:
            raise UsageError(f"--set takes METHOD.KEY=VALUE in a bench, not {key}={value}")
        if label not in methods:
            raise unknown_name("method of this bench", label, methods)
        settings = {**methods[label].get("settings", {}), name: value}
        methods[label] = {**methods[label], "settings": settings}
    other: dict[str, Any] = {
        name: given[name] for name in ("baseline", "selection", "search") if name in given
    }
    other |= {name: tuple(words(given[name])) for name in ("hold_out", "models") if name in given}
    if "seeds" in given:
        other["seeds"] = parse_seeds(given["seeds"])
    return replace(grid, common=common, methods=methods, **other)


def words(given: str | Sequence[str]) -> list[str]:
    """Split at commas; a repeated option extends the list."""
    texts = [given] if isinstance(given, str) else given
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds: `3` means three seeds, 0 to 2; `0,4` means these two."""
    try:
        numbers = tuple(int(word) for word in words(text))
    except ValueError:
        raise UsageError(f"--seeds takes a number of seeds, or a list such as 0,1,2, not {text!r}") from None
    if len(numbers) == 1 and "," not in text:
        return tuple(range(numbers[0]))
    return numbers


@dataclass(frozen=True)
class Written:
    """The outputs of a bench, for the terminal and for `--json`."""

    folder: BenchFolder
    outcome: BenchOutcome
    search: list[dict[str, Any]]
    outputs: Outputs | None

    @property
    def values(self) -> dict[str, Any]:
        """The result for `--json`."""
        from unseen.bench.results import as_values

        return {
            **(self.outputs.values if self.outputs else {}),
            "folder": str(self.folder.path),
            "results": [as_values(result) for result in self.outcome.results],
            "search": self.search,
            "failed": [
                {"job": job.id, "name": job.name, "reason": reason} for job, reason in self.outcome.failed
            ],
            "missing": [{"job": job.id, "name": job.name} for job in self.outcome.missing],
        }

    def print(self, console: Console) -> None:
        """Print the tables, the significance tests, the choices of a search, and the path of the page."""
        from unseen.bench.tables.render import to_terminal

        if self.outputs:
            for sheet in self.outputs.sheets:
                console.print(to_terminal(sheet))
            for words in self.outputs.sentences:
                console.print(f"{words}.", markup=False, soft_wrap=True)
        for cell in self.search:
            place = f"{cell['label']}, {cell['held_out']} held out: "
            console.print(place + _choice(cell), markup=False, soft_wrap=True)
        if self.outcome.missing:
            console.print(f"{len(self.outcome.missing)} jobs have not run yet.")
        if self.outputs:
            console.print(f"Page: {self.outputs.page}", soft_wrap=True)


def write_all(
    grid: Grid, folder: BenchFolder, outcome: BenchOutcome, *, latex: Path | None, csv: Path | None
) -> Written:
    """Write all outputs of the finished jobs; there are no tables without any."""
    from unseen.bench.bench_files import write_finished

    outputs, search = write_finished(grid, folder, outcome, latex=latex, csv=csv)
    return Written(folder, outcome, search, outputs)


def _choice(cell: dict[str, Any]) -> str:
    """Describe what a search chose."""
    if cell["chosen"] is None:
        return "every trial failed"
    best = next(trial for trial in cell["trials"] if trial["trial"] == cell["chosen"])
    options = {**best["options"]}
    drawn = {
        **{key: value for key, value in options.items() if key != "settings"},
        **options.get("settings", {}),
    }
    listed = ", ".join(f"{key} {value}" for key, value in drawn.items()) or "as it is"
    return f"trial {cell['chosen']} of {len(cell['trials'])} ({listed}), {cell['rule']} {best['score']:.3f}"
