"""`unseen train`: one run, with one domain held out."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.cli.live_command import LiveOption, follow_live
from unseen.cli.options import option_group, run_options, with_options, with_plugins
from unseen.config import RunConfig
from unseen.config_options import EXECUTION
from unseen.errors import UnseenError, UsageError

if TYPE_CHECKING:
    from unseen.callbacks.base import Callbacks
    from unseen.deploy.flower.flwr_cli import SuperLinkConnection
    from unseen.runner.run import RunResult


@dataclass(frozen=True)
class FlowerOptions:
    """The coordinator of a federation, and its rules for the sites."""

    coordinator: Annotated[
        str | None,
        typer.Option(
            help="Flower: the coordinator's address, or the folder of `unseen up`.", rich_help_panel=EXECUTION
        ),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            help="Flower: CA of the coordinator's certificate; without it no TLS.", rich_help_panel=EXECUTION
        ),
    ] = None
    min_sites: Annotated[
        int, typer.Option(help="Flower: a round with fewer sites ends the run.", rich_help_panel=EXECUTION)
    ] = 1
    round_deadline: Annotated[
        float, typer.Option(help="Flower: seconds that sites have to answer.", rich_help_panel=EXECUTION)
    ] = 3600.0

    @property
    def again(self) -> str:
        """The options that name the same coordinator in another command."""
        if self.coordinator is None:
            return ""
        trust = f" --ca {shlex.quote(str(self.ca))}" if self.ca else ""
        return f" --coordinator {self.coordinator}{trust}"


@with_plugins
@with_options(run=run_options(), flower=option_group(FlowerOptions))
def train_command(
    data: Annotated[
        str | None,
        typer.Argument(
            help="A named data set, a folder domain/class/image, a table (.csv, .parquet) or a job (.toml)."
        ),
    ] = None,
    *,
    run: dict[str, Any],
    flower: FlowerOptions,
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Follow the run with this tracker (repeatable). See `unseen list callbacks`.",
            rich_help_panel=EXECUTION,
        ),
    ] = None,
    live: LiveOption = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; created under runs/ if not given.", rich_help_panel=EXECUTION),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out.", rich_help_panel=EXECUTION)
    ] = False,
    figures: Annotated[
        bool,
        typer.Option("--figures", help="Also write the figures as PNG files.", rich_help_panel=EXECUTION),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=EXECUTION)
    ] = False,
) -> None:
    """Train one model on some domains and evaluate it on a held-out one.

    DATA is a named data set (`unseen list data`), a folder domain/class/image, or a table (.csv, .parquet).

    Examples:

        unseen train rotated-digits --hold-out 75 --rounds 5

        unseen train my_photos/ --hold-out site_d

        unseen train my_photos/ --hold-out site_d --effort quick --method csac

        unseen train table.csv --hold-out north --target price --task regression

        unseen train rotated-digits --hold-out 75 --rounds 50 --live

        unseen train --resume --out runs/rotated-digits-75-fedavg-0

        unseen train job.toml --engine flower --coordinator federation
    """
    from unseen.callbacks.base import make_callbacks
    from unseen.cli.progress import LiveProgress
    from unseen.report import result_table, write_figures
    from unseen.runner.finalize import explain_divergence
    from unseen.runs.folder import RunFolder, default_folder, resume_config

    given = with_job_file({**run, **({"data": data} if data is not None else {})})
    if resume and out is not None and "data" not in given:
        config, choices = resume_config(out, given), ""
    else:
        if "data" not in given:
            raise UsageError("name the data: unseen train DATA --hold-out DOMAIN (see `unseen train --help`)")
        from unseen.runner.effort import describe_choices, with_effort

        options = with_effort(given)
        config, choices = RunConfig.from_mapping(options), describe_choices(options, given)
    folder = out or default_folder(config, resume=resume)
    console = messages()
    if choices:
        console.print(choices, soft_wrap=True, highlight=False)
    try:
        with LiveProgress(console, label=config.method) as progress:
            callbacks = [progress, *make_callbacks(track or (), folder)]
            if live:
                callbacks.append(follow_live(folder))
            result = run_somewhere(config, flower, out=folder, resume=resume, callbacks=callbacks)
    except KeyboardInterrupt:
        again = f"unseen train --resume --out {shlex.quote(str(folder))}{flower.again}"
        console.print(f"\nStopped. Finished rounds are kept; resume with:\n  {again}")
        sys.exit(INTERRUPTED)
    if figures:
        write_figures(folder, folder / "figures")
    if as_json:
        print_json({**result.values, "folder": str(folder)})
    else:
        results().print(result_table([result.values]))
        results().print(f"Report: {RunFolder(folder).report}", soft_wrap=True)
    if reason := explain_divergence(result.values):
        raise UnseenError(reason)


def with_job_file(given: dict[str, Any]) -> dict[str, Any]:
    """Read a job file (the format of a run's config.toml); options on the command line override it."""
    job = Path(str(given.get("data", "")))
    if job.suffix.lower() != ".toml":
        return given
    return {**vars(RunConfig.load(job)), **{key: value for key, value in given.items() if key != "data"}}


def run_somewhere(
    config: RunConfig, flower: FlowerOptions, *, out: Path, resume: bool, callbacks: Callbacks
) -> RunResult:
    """Run on the engine that the configuration names."""
    if config.engine != "flower":
        if flower.coordinator is not None:
            raise UsageError("--coordinator is for --engine flower; omit it to run on this machine")
        from unseen.runner.run import run

        return run(config, out=out, resume=resume, callbacks=callbacks)
    if flower.coordinator is None:
        raise UsageError("--engine flower needs --coordinator ADDRESS, where `unseen up` listens (host:port)")
    from unseen.deploy.coordinator.coordinator import RoundPolicy
    from unseen.deploy.coordinator.submit import run_on_flower

    return run_on_flower(
        config,
        coordinator=find_coordinator(flower.coordinator, flower.ca),
        out=out,
        resume=resume,
        terms=RoundPolicy(deadline=flower.round_deadline, min_sites=flower.min_sites),
        callbacks=callbacks,
    )


def find_coordinator(named: str, ca: Path | None) -> SuperLinkConnection:
    """Take an address as it is; a folder is the home of a coordinator on this machine."""
    from unseen.deploy.coordinator.coordinator_home import CoordinatorHome
    from unseen.deploy.flower.flwr_cli import SuperLinkConnection

    if Path(named).is_dir():
        return CoordinatorHome.load(Path(named)).here
    if not named.rpartition(":")[2].isdigit():
        raise UsageError(f"--coordinator {named}: expected host:port, or the folder of `unseen up --home`")
    if ca is not None and not ca.is_file():
        raise UsageError(f"no such file: {ca}; --ca takes the coordinator's CA certificate, a PEM file")
    return SuperLinkConnection(named, ca)
