"""`unseen app`: a job as a plain Flower app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.console import messages
from unseen.errors import UsageError


def app_command(  # noqa: PLR0917 (one parameter an option)
    folder: Annotated[Path, typer.Argument(help="Folder to write the app into; must be new or empty.")],
    job: Annotated[
        Path | None, typer.Option(help="Job file (the format of a run's config.toml); else FedAvg.")
    ] = None,
    hold_out: Annotated[
        list[str] | None, typer.Option(help="Site that the model is judged on (repeatable).")
    ] = None,
    out: Annotated[Path, typer.Option(help="Run folder, on the SuperLink's machine.")] = Path("unseen-run"),
    min_sites: Annotated[int, typer.Option(help="A round with fewer sites ends the run.")] = 1,
    round_deadline: Annotated[float, typer.Option(help="Seconds that sites have to answer.")] = 3600.0,
) -> None:
    """Write a Flower app for teams that run their own SuperLink and start jobs with `flwr run`.

    Each SuperNode needs Unseen installed and says who it is with
    `--node-config 'site="a" data="/path/to/CLASS/IMAGE" home="/path/to/keep/memory"'`.

    Example:

        unseen app my_app --job job.toml
    """
    from unseen.config import RunConfig
    from unseen.deploy.coordinator import RoundPolicy
    from unseen.deploy.flower.app_folder import write_app

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; name a new folder")
    given = vars(RunConfig.load(job)) if job else {"data": "sites"}
    if hold_out:
        given = {**given, "hold_out": hold_out}
    config = RunConfig.from_mapping(given)
    terms = RoundPolicy(deadline=round_deadline, min_sites=min_sites)
    write_app(folder, config, out=out, resume=False, terms=terms)
    messages().print(
        f"Wrote a Flower app into {folder}. Start it on your SuperLink:\n  flwr run {folder}",
        markup=False,
        soft_wrap=True,
    )
