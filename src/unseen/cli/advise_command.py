"""`unseen advise`: which method, model and options to take, by a race on the user's own sources."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from unseen.cli.bench_command import OF_THE_GRID, words
from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.cli.options import run_options, with_options, with_plugins
from unseen.config_options import EXECUTION
from unseen.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from unseen.advice.race import RaceResult
    from unseen.advice.verdict import Advice
    from unseen.bench.workers import Placement
    from unseen.data import DataSet

_RACE = "Race"
ADVICE = "advice.json"
_CHOSEN_BY_RACE = ("effort", "sources", "validate_on")


@with_plugins
@with_options(common=run_options(without=(*OF_THE_GRID, *_CHOSEN_BY_RACE), panel="Options of every run"))
def advise_command(
    data: Annotated[str, typer.Argument(help="Data as in `unseen train`: a name, a folder or a table.")],
    *,
    hide: Annotated[
        list[str] | None,
        typer.Option(help="Domain that the race may not see (repeatable).", rich_help_panel=_RACE),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Limit of the race, earlier calls included.", rich_help_panel=_RACE)
    ] = 30.0,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Candidates, separated by semicolons; all that fit if not given.", rich_help_panel=_RACE
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Runs per candidate and left-out source.", rich_help_panel=_RACE)
    ] = 1,
    common: dict[str, Any],
    data_root: Annotated[
        str | None,
        typer.Option(help="Folder of the named data sets.", envvar="UNSEEN_DATA", rich_help_panel=EXECUTION),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda or mps.", rich_help_panel=EXECUTION)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Jobs in parallel; one per core if not given.", rich_help_panel=EXECUTION),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the race; created under runs/ if not given.", rich_help_panel=EXECUTION),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the advice as JSON.", rich_help_panel=EXECUTION)
    ] = False,
) -> None:
    """Race a few strong candidates on your own sources; say which to take, how sure that is, and its cost.

    Every source is left out in turn: candidates train on the others and are judged on it. The worse half
    stops after a quarter and after half of the full length. Stop at any time; the same command resumes.

    Examples:

        unseen advise my_photos/ --minutes 30

        unseen advise pacs --hide sketch --out my_race --json

        unseen advise rotated-digits --candidates "FedAvg;CWT" --minutes 5
    """
    from unseen.bench import WORKERS
    from unseen.child_processes import start_fork_server

    start_fork_server(WORKERS)
    from unseen.bench.workers import Placement

    if minutes <= 0 or seeds < 1:
        raise UsageError("--minutes must be above 0 and --seeds at least 1")
    options = {**common, "data": data}
    place = out or Path("runs") / f"advise-{Path(data).stem}"
    where = Placement(threads=1, device=device, data_root=data_root)
    asked = [word.strip() for word in candidates.split(";") if word.strip()] if candidates else None
    hidden = tuple(words(hide or []))
    advice = _race(
        options, place, where, hidden=hidden, minutes=minutes, asked=asked, seeds=seeds, workers=workers
    )
    _report(advice, data, {k: v for k, v in options.items() if k != "data"}, place, as_json=as_json)


def _race(
    options: Mapping[str, Any],
    place: Path,
    where: Placement,
    *,
    hidden: tuple[str, ...],
    minutes: float,
    asked: list[str] | None,
    seeds: int,
    workers: int | None,
) -> Advice:
    """Choose the candidates, run the race with live progress, and draw the conclusion."""
    from unseen.advice.candidates import choose_candidates, kind_of_data
    from unseen.advice.race import Race
    from unseen.advice.verdict import advise
    from unseen.bench.bench_folder import BenchFolder
    from unseen.bench.runner import choose_workers
    from unseen.cli.bench_progress import BenchProgress

    console = messages()
    samples = _load(options, where)
    sources = _sources(samples, hidden)
    side = samples.input_shape[-1] if samples.is_image else 0
    chosen = choose_candidates(kind_of_data(is_image=samples.is_image, side=side), asked, minutes=minutes)
    parallel = choose_workers(workers, where)
    console.print(
        f"{len(chosen)} candidates, {len(sources)} sources left out in turn, at most {minutes:g} minutes: "
        f"{', '.join(one.name for one in chosen)}",
        soft_wrap=True,
        markup=False,
    )
    root = {"data_root": where.data_root} if where.data_root else {}
    try:
        with BenchProgress(console, workers=parallel) as view:
            result = Race(
                candidates=chosen,
                common={**options, **root, "hold_out": hidden},
                sources=sources,
                folder=BenchFolder(place),
                seeds=range(seeds),
                limit=60 * minutes,
                workers=parallel,
                placement=where,
                callback=view,
            ).run()
    except KeyboardInterrupt:
        console.print(
            "\nStopped. Finished jobs and rounds are kept; the same command resumes.", soft_wrap=True
        )
        sys.exit(INTERRUPTED)
    return advise(result, [one.name for one in chosen])


def _load(options: Mapping[str, Any], where: Placement) -> DataSet:
    """Load the data once, to know its domains and its kind."""
    from unseen.bench.bench_job import job_config
    from unseen.bench.grid import ALL
    from unseen.cli.progress import DelayedProgressBar
    from unseen.data import load_data
    from unseen.runner.prepare import data_request

    config = where.apply(job_config({**options, "hold_out": (ALL,)}))
    with DelayedProgressBar(messages()) as bar:
        return load_data(data_request(config, bar))


def _sources(data: DataSet, hidden: tuple[str, ...]) -> list[str]:
    """Return the domains that are not hidden; a race needs three, two of which train."""
    for name in hidden:
        if name not in data.domains:
            raise unknown_name("domain", name, data.domains)
    sources = [name for name in data.domains if name not in hidden]
    if len(sources) < 3:
        raise UsageError(
            f"a race leaves out one source and trains on at least two; {data.name} has {len(sources)} "
            "that are not hidden: add a domain, or compare methods with `unseen bench`"
        )
    return sources


def _report(advice: Advice, data: str, common: Mapping[str, Any], place: Path, *, as_json: bool) -> None:
    """Write the advice next to the jobs and print it."""
    from unseen.advice.verdict import as_values
    from unseen.fileio import write_json

    values = {**as_values(advice, data=data, common=common), "folder": str(place)}
    write_json(place / ADVICE, values)
    if as_json:
        print_json(values)
        return
    console = results()
    console.print(_table(advice.race))
    said = (advice.reason, advice.certainty, advice.caveat)
    for line in (f"Take: {advice.chosen.candidate.name}", *(f"{one}." for one in said)):
        console.print(line[0].upper() + line[1:], soft_wrap=True, markup=False)
    for name, reason in advice.race.failed.items():
        console.print(f"{name} failed: {reason}", soft_wrap=True, markup=False)
    if advice.race.stopped:
        console.print(f"The race ended early: {advice.race.stopped}.", soft_wrap=True, markup=False)
    command = shlex.join([*advice.chosen.candidate.command(data, common), "--hold-out"])
    console.print(f"Then: {command} DOMAIN", soft_wrap=True, markup=False)


def _table(race: RaceResult) -> Table:
    """Lay out the standings."""
    from unseen.advice.verdict import describe
    from unseen.report.formatting import format_bytes, format_duration, format_value

    table = Table(
        "candidate", "length", "left-out sources", "time per run", "sent per run", "leaves a client"
    )
    for standing in race.standings:
        values = describe(standing)
        error = values["standard_error"]
        spread = f" ± {format_value(error, race.metric)}" if error is not None else ""
        table.add_row(
            standing.candidate.name,
            f"{standing.fraction:.0%}",
            f"{format_value(standing.mean, race.metric)}{spread}",
            format_duration(standing.seconds),
            format_bytes(standing.sent),
            ", ".join(values["leaves"]),
        )
    return table
