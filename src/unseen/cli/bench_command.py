"""`unseen bench`: methods x held-out domains x seeds, in parallel, stopped and continued at any time."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from unseen.cli import options as shared
from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.cli.train_command import parse_settings
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.fileio import write_json

if TYPE_CHECKING:
    from unseen.bench.bench_files import Outputs
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
    "schedule",
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
    optimiser: Annotated[
        str | None,
        typer.Option(
            "--optimizer",
            "--optimiser",
            help="sgd, adam, adamw, rmsprop or adagrad; see unseen list optimizers.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Learning rate over the rounds: constant, cosine, exponential or step.", rich_help_panel=_HOW
        ),
    ] = None,
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
    from unseen.bench import WORKERS
    from unseen.child_processes import start_fork_server

    if not collect:
        start_fork_server(WORKERS)
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.workers import Placement

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
    from unseen.cli.bench_progress import BenchProgress
    from unseen.cli.progress import DelayedProgressBar

    console = messages()
    try:
        known = known_domains(grid, folder) or (domains_of_results(grid, folder) if collect else None)
        if known is None:
            with DelayedProgressBar(console) as bar:
                known = look_at_data(grid, where, progress=bar)
        if collect:
            return bench_state(known, folder), known
        hands = choose_workers(workers, where)
        with BenchProgress(console, workers=hands) as view:
            outcome = run_bench(
                known, folder, workers=hands, placement=where, retry_failed=retry, callback=view
            )
        return outcome, known
    except KeyboardInterrupt:
        console.print(f"\nStopped. Finished jobs and rounds are kept; go on with:\n  {again}", soft_wrap=True)
        sys.exit(INTERRUPTED)


def default_out(source: str) -> Path:
    """The folder of a bench for which none was named."""
    return Path("runs") / f"bench-{Path(source).stem}"


def grid_from(source: str | None, out: Path, given: Mapping[str, Any]) -> Grid:
    """Read a grid file, or the one that a bench folder holds, or make a grid of options for named data.

    Options that are given count more than what a file says.
    """
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.grid import Grid

    if source is None:
        stored = BenchFolder(out).grid
        if not stored.exists():
            raise UsageError(
                f"{out} holds no bench to go on with; start one: unseen bench GRID.toml --out {out}"
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
    return changed(empty, given)


def changed(grid: Grid, given: Mapping[str, Any]) -> Grid:
    """Put options in the place of what a grid says."""
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
    """Split at commas; an option that was given several times counts as a longer list."""
    texts = [given] if isinstance(given, str) else given
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def parse_seeds(text: str) -> tuple[int, ...]:
    """`3` means three seeds, 0 to 2; `0,4` means these two."""
    try:
        numbers = tuple(int(word) for word in words(text))
    except ValueError:
        raise UsageError(f"--seeds takes how many, or a list such as 0,1,2, not {text!r}") from None
    if len(numbers) == 1 and "," not in text:
        return tuple(range(numbers[0]))
    return numbers


@dataclass(frozen=True)
class Written:
    """What was found, for people and for machines."""

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
        """Show the tables, what is significant in words, the choices of a search, and where the page is."""
        from unseen.bench.render import to_terminal

        if self.outputs:
            for sheet in self.outputs.sheets:
                console.print(to_terminal(sheet))
            for words in self.outputs.sentences:
                console.print(f"{words}.", markup=False, soft_wrap=True)
        for cell in self.search:
            place = f"{cell['label']}, {cell['held_out']} held out: "
            console.print(place + _choice(cell), markup=False, soft_wrap=True)
        if self.outcome.missing:
            console.print(f"{len(self.outcome.missing)} jobs are still to be run.")
        if self.outputs:
            console.print(f"Page: {self.outputs.page}", soft_wrap=True)


def write_all(
    grid: Grid, folder: BenchFolder, outcome: BenchOutcome, *, latex: Path | None, csv: Path | None
) -> Written:
    """Write everything that follows from the finished jobs; without any there are no tables."""
    from unseen.bench.bench_files import write_outputs
    from unseen.bench.result_store import ResultStore
    from unseen.bench.results import write_results
    from unseen.bench.search import search_report

    _require_no_loss(folder, outcome)
    if outcome.results or not folder.results.exists():
        write_results(folder.results, outcome.results)
    search: list[dict[str, Any]] = []
    if grid.search and outcome.plan.settled:
        search = search_report(grid, ResultStore(folder.work))
        write_json(folder.search, search)
    outputs = None
    if outcome.results:
        outputs = write_outputs(folder.path, grid, outcome.results, work=folder.work, latex=latex, csv=csv)
    return Written(folder, outcome, search, outputs)


def _require_no_loss(folder: BenchFolder, outcome: BenchOutcome) -> None:
    """Refuse to write over lines of other jobs that cannot be made again from their folders."""
    from unseen.bench.results import kept_results
    from unseen.runs.folder import RunFolder

    others = kept_results(folder).keys() - {result.job for result in outcome.results}
    gone = [job for job in others if not RunFolder(folder.work / job).result.exists()]
    if outcome.results and gone:
        raise UsageError(
            f"{folder.results} holds {len(gone)} results of jobs that this grid does not have and whose "
            f"folders are not in {folder.work}; they would be lost: take another --out, or delete that file"
        )


def _choice(cell: dict[str, Any]) -> str:
    """Say what a search chose."""
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
