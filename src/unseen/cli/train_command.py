"""`unseen train`: one run, with one domain held out."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.console import INTERRUPTED, messages, print_json, results
from unseen.errors import UsageError

if TYPE_CHECKING:
    from unseen.callbacks.base import Callbacks
    from unseen.config import RunConfig
    from unseen.deploy.flower.flwr_cli import SuperLinkConnection
    from unseen.runner.run import RunResult

EXAMPLES = """Examples:

    unseen train rotated-digits --hold-out 75 --rounds 5

    unseen train my_data/ --hold-out site_d --model resnet18 --image-size 64

    unseen train table.csv --hold-out north --target price --task regression

    unseen train --resume --out runs/rotated-digits-75-fedavg-0

    unseen train job.toml --engine flower --coordinator federation
"""

NO_PART_OF_THE_RUN = (
    *("set_", "set_schedule", "protect_set", "out", "resume", "figures", "as_json"),
    *("coordinator", "ca", "min_sites", "round_deadline"),
)
_DATA = "What is learnt"
_WHO = "Who holds it"
_HOW = "How it is learnt"
_PROTECTED = "How it is protected"
_WHERE = "Where"


def train_command(  # noqa: PLR0917 (one parameter an option)
    data: Annotated[
        str | None,
        typer.Argument(
            help="A named data set, a folder domain/class/image, a table (.csv, .parquet) or a job (.toml)."
        ),
    ] = None,
    hold_out: Annotated[
        list[str] | None,
        typer.Option(help="Domain that the model is judged on, unseen (repeatable).", rich_help_panel=_DATA),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--source", help="Train on this domain and not on all (repeatable).", rich_help_panel=_DATA
        ),
    ] = None,
    validate_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Domain kept out of training to choose the round by (repeatable).", rich_help_panel=_DATA
        ),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the square images.", rich_help_panel=_DATA)
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(help="none, standard, ...: changes to training images.", rich_help_panel=_DATA),
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(help="Part of each source domain kept for model selection.", rich_help_panel=_DATA),
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(help="Part of each source domain kept for in-domain accuracy.", rich_help_panel=_DATA),
    ] = None,
    domain_column: Annotated[
        str | None, typer.Option(help="Tables: the column that names the domain.", rich_help_panel=_DATA)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Tables: the column to predict.", rich_help_panel=_DATA)
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Tables: classification or regression.", rich_help_panel=_DATA)
    ] = None,
    table_statistics: Annotated[
        str | None,
        typer.Option(
            help="Tables: scale by federated sums, or by each domain's local ones.", rich_help_panel=_DATA
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool | None,
        typer.Option(
            "--skip-unreadable",
            help="Leave unreadable image files out instead of stopping.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    data_root: Annotated[
        str | None,
        typer.Option(help="Where named data sets lie.", envvar="UNSEEN_DATA", rich_help_panel=_DATA),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="domain, iid, dirichlet or mixed.", rich_help_panel=_WHO)
    ] = None,
    clients_per_domain: Annotated[
        int | None, typer.Option(help="Clients that share a domain.", rich_help_panel=_WHO)
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Dirichlet: small = clients have few classes each.", rich_help_panel=_WHO),
    ] = None,
    heterogeneity: Annotated[
        float | None,
        typer.Option(help="Mixed: 1 = one domain a client, 0 = all alike.", rich_help_panel=_WHO),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Part of the clients that work in a round.", rich_help_panel=_WHO)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="See `unseen list methods`.", rich_help_panel=_HOW)
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the method (repeatable).", rich_help_panel=_HOW
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="See `unseen list models`.", rich_help_panel=_HOW)] = None,
    weights: Annotated[
        str | None, typer.Option(help="Initial weights: a file, or imagenet.", rich_help_panel=_HOW)
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of local work and merging.", rich_help_panel=_HOW)
    ] = None,
    local_epochs: Annotated[
        int | None, typer.Option(help="Passes over a client's data in a round.", rich_help_panel=_HOW)
    ] = None,
    batches_per_epoch: Annotated[
        int | None, typer.Option(help="Make an epoch this many batches.", rich_help_panel=_HOW)
    ] = None,
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
    momentum: Annotated[float | None, typer.Option(rich_help_panel=_HOW)] = None,
    weight_decay: Annotated[float | None, typer.Option(rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Learning rate over the rounds: constant, cosine, exponential or step.", rich_help_panel=_HOW
        ),
    ] = None,
    set_schedule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="A setting of the schedule; may be repeated.", rich_help_panel=_HOW
        ),
    ] = None,
    label_smoothing: Annotated[float | None, typer.Option(rich_help_panel=_HOW)] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same weights.", rich_help_panel=_HOW)
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations.", rich_help_panel=_HOW)
    ] = None,
    selection: Annotated[
        str | None,
        typer.Option(help="source-validation, validation-domains, last or oracle.", rich_help_panel=_HOW),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, or bfloat16 on a GPU.", rich_help_panel=_HOW)
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option("--compile", help="Let PyTorch compile the model first.", rich_help_panel=_HOW),
    ] = None,
    protect: Annotated[
        str | None,
        typer.Option(
            help="What is done to updates before they leave a client: none, secure-sum, ...",
            rich_help_panel=_PROTECTED,
        ),
    ] = None,
    protect_set: Annotated[
        list[str] | None,
        typer.Option(
            "--protect-set",
            metavar="KEY=VALUE",
            help="A setting of the protection (repeatable).",
            rich_help_panel=_PROTECTED,
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, mps.", rich_help_panel=_WHERE)] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that train clients side by side.", rich_help_panel=_WHERE)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of each process.", rich_help_panel=_WHERE)
    ] = None,
    update_dtype: Annotated[
        str | None,
        typer.Option(
            help="Round what clients send to float16 or bfloat16: half the bytes.", rich_help_panel=_HOW
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="local: on this machine; flower: at sites that keep their data.", rich_help_panel=_WHERE
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="Flower: the coordinator's address, or the folder of `unseen up`.", rich_help_panel=_WHERE
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="Flower: authority of its certificate; without it no TLS.", rich_help_panel=_WHERE),
    ] = None,
    min_sites: Annotated[
        int, typer.Option(help="Flower: a round with fewer sites ends the run.", rich_help_panel=_WHERE)
    ] = 1,
    round_deadline: Annotated[
        float, typer.Option(help="Flower: seconds that sites have to answer.", rich_help_panel=_WHERE)
    ] = 3600.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; made under runs/ if not given.", rich_help_panel=_WHERE),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out.", rich_help_panel=_WHERE)
    ] = False,
    figures: Annotated[
        bool, typer.Option("--figures", help="Also write the figures as PNG files.", rich_help_panel=_WHERE)
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=_WHERE)
    ] = False,
) -> None:
    """Train one model on some domains and judge it on one that took no part.

    DATA is a named data set (`unseen list data`), a folder domain/class/image, or a table (.csv, .parquet).
    """
    given = {
        name: value
        for name, value in locals().items()
        if value is not None and name not in NO_PART_OF_THE_RUN
    }
    if set_:
        given["settings"] = parse_settings(set_)
    if set_schedule:
        given["schedule_settings"] = parse_settings(set_schedule)
    if protect_set:
        given["protect_settings"] = parse_settings(protect_set)
    place = FlowerPlace(coordinator, ca, min_sites, round_deadline)
    run_and_report(given, out=out, resume=resume, figures=figures, as_json=as_json, place=place)


train_command.__doc__ = f"{train_command.__doc__}\n\n{EXAMPLES}"


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Split `key=value` pairs."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set takes KEY=VALUE, not {pair!r}")
        settings[key.strip()] = value.strip()
    return settings


def run_and_report(
    given: dict[str, Any],
    *,
    out: Path | None,
    resume: bool,
    figures: bool = False,
    as_json: bool = False,
    place: FlowerPlace | None = None,
) -> None:
    """Run with live progress, then print the table and where things lie."""
    from unseen.cli.progress import LiveProgress
    from unseen.config import RunConfig
    from unseen.report import result_table, write_figures
    from unseen.runs.folder import RunFolder, default_folder, resume_config

    given = with_job_file(given)
    if resume and out is not None and "data" not in given:
        config = resume_config(out, given)
    else:
        if "data" not in given:
            raise UsageError("name the data: unseen train DATA --hold-out DOMAIN (see `unseen train --help`)")
        config = RunConfig.from_mapping(given)
    folder = out or default_folder(config, resume=resume)
    console = messages()
    try:
        with LiveProgress(console, label=config.method) as progress:
            result = run_somewhere(config, place, out=folder, resume=resume, callbacks=progress)
    except KeyboardInterrupt:
        again = f"unseen train --resume --out {shlex.quote(str(folder))}{place.again if place else ''}"
        console.print(f"\nStopped. Finished rounds are kept; go on with:\n  {again}")
        sys.exit(INTERRUPTED)
    if figures:
        write_figures(folder, folder / "figures")
    if as_json:
        print_json({**result.values, "folder": str(folder)})
        return
    results().print(result_table([result.values]))
    results().print(f"Report: {RunFolder(folder).report}", soft_wrap=True)


@dataclass(frozen=True)
class FlowerPlace:
    """The coordinator of a federation and the terms for its sites."""

    coordinator: str | None = None
    ca: Path | None = None
    min_sites: int = 1
    round_deadline: float = 3600.0

    @property
    def again(self) -> str:
        """The options that name the same place once more."""
        if self.coordinator is None:
            return ""
        trust = f" --ca {shlex.quote(str(self.ca))}" if self.ca else ""
        return f" --coordinator {self.coordinator}{trust}"


def with_job_file(given: dict[str, Any]) -> dict[str, Any]:
    """Take what a job file says (the format of a run's config.toml); options given beside it count more."""
    job = Path(str(given.get("data", "")))
    if job.suffix.lower() != ".toml":
        return given
    from unseen.config import RunConfig

    return {**vars(RunConfig.load(job)), **{key: value for key, value in given.items() if key != "data"}}


def run_somewhere(
    config: RunConfig, place: FlowerPlace | None, *, out: Path, resume: bool, callbacks: Callbacks
) -> RunResult:
    """Run on the engine that the configuration names."""
    if config.engine != "flower":
        if place is not None and place.coordinator is not None:
            raise UsageError("--coordinator is for --engine flower; leave it out to run on this machine")
        from unseen.runner.run import run

        return run(config, out=out, resume=resume, callbacks=callbacks)
    if place is None or place.coordinator is None:
        raise UsageError("--engine flower needs --coordinator ADDRESS, where `unseen up` listens (host:port)")
    from unseen.deploy.coordinator import RoundPolicy
    from unseen.deploy.submit import run_on_flower

    return run_on_flower(
        config,
        coordinator=_coordinator(place.coordinator, place.ca),
        out=out,
        resume=resume,
        terms=RoundPolicy(deadline=place.round_deadline, min_sites=place.min_sites),
        callbacks=callbacks,
    )


def _coordinator(named: str, ca: Path | None) -> SuperLinkConnection:
    """Take an address as it is; a folder is the home of a coordinator on this machine."""
    from unseen.deploy.coordinator_home import CoordinatorHome
    from unseen.deploy.flower.flwr_cli import SuperLinkConnection

    if Path(named).is_dir():
        return CoordinatorHome.load(Path(named)).here
    if not named.rpartition(":")[2].isdigit():
        raise UsageError(f"--coordinator {named}: expected host:port, or the folder of `unseen up --home`")
    if ca is not None and not ca.is_file():
        raise UsageError(f"no such file: {ca}; --ca takes the coordinator's authority, a PEM file")
    return SuperLinkConnection(named, ca)
