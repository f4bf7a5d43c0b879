"""`unseen data`: look at data before training on it."""

from __future__ import annotations

import shlex
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from unseen.cli.console import messages, print_json, printable, results
from unseen.cli.getting import get_command
from unseen.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from unseen.data import DataRequest
    from unseen.data.check import DataCheck

app = typer.Typer(
    no_args_is_help=True, help="Look at data, or get some.\n\nExample:\n\n    unseen data check my_data/"
)
app.command("get")(get_command)

TASKS = ("classification", "regression")


@app.command("check")
def check_command(  # noqa: PLR0917 (one parameter an option)
    path: Annotated[
        str,
        typer.Argument(help="A folder domain/class/image, a table (.csv, .parquet), or a named data set."),
    ],
    picture: Annotated[
        Path | None, typer.Option(help="Also draw the counts into this PNG file.", metavar="FILE.png")
    ] = None,
    domain_column: Annotated[str, typer.Option(help="Tables: the column that names the domain.")] = "domain",
    target: Annotated[str, typer.Option(help="Tables: the column to predict.")] = "target",
    task: Annotated[str | None, typer.Option(help="Tables: classification or regression.")] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Where named data sets lie.", envvar="UNSEEN_DATA")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Count samples per domain and class, open every image, and say what is wrong or unusual.

    PATH is a folder domain/class/image, a table (.csv, .parquet) or a named data set. The exit code is 1 if
    training would refuse the data, else 0.

    Examples:

        unseen data check rotated-digits

        unseen data check my_data/ --picture counts.png
    """
    from unseen.cli.counts import write_counts_picture
    from unseen.cli.waiting import LateBar
    from unseen.data import DataRequest
    from unseen.data.check import check_data

    if picture is not None and picture.suffix.lower() != ".png":
        raise UsageError(f"--picture {picture} must end in .png")
    if task is not None and task not in TASKS:
        raise unknown_name("task", task, TASKS)
    with LateBar(messages()) as bar:
        request = DataRequest(
            source=path,
            root=data_root.expanduser() if data_root else None,
            domain_column=domain_column,
            target_column=target,
            task="regression" if task == "regression" else "classification" if task else None,
            progress=bar,
        )
        check = check_data(request)
    drawn = picture if picture is not None and check.counts else None
    if drawn is not None:
        write_counts_picture(check.counts, drawn)
    if as_json:
        print_json({**check.to_dict(), "picture": str(drawn) if drawn else None})
    else:
        _show(check, drawn, results(), next_step=_next_step(check, request))
    if not check.ok:
        raise typer.Exit(1)


def _show(check: DataCheck, picture: Path | None, console: Console, *, next_step: str) -> None:
    show_findings(check, console)
    if picture is not None:
        _say(console, f"Picture: {picture}")
    if check.problem:
        _say(console, f"Training would refuse this data: {check.problem}", "bold red")
    elif check.unreadable:
        count = len(check.unreadable)
        _say(
            console,
            f"Training would refuse this data: {count} unreadable (--skip-unreadable leaves them out)",
            "bold red",
        )
    else:
        _say(console, f"Training can start, for example: {next_step}", "green")


def show_findings(check: DataCheck, console: Console) -> None:
    """Print what was found: counts, what cannot be read, what is unusual."""
    from unseen.cli.counts import counts_table

    say = partial(_say, console)
    say(f"{check.name}: {check.total} samples", "bold")
    if check.counts:
        console.print(counts_table(check.counts, console))
    for name, reason in check.unreadable.items():
        say(f"unreadable: {name} ({reason})", "red")
    for what, names in _grouped(check).items():
        say(f"converted on reading: {len(names)} with {what}, for example {names[0]}")
    for role, domains in (
        ("held out unless you name others", check.hold_out),
        ("kept to choose the round", check.validate_on),
        ("groups, of which the worst is told", check.groups),
    ):
        if domains:
            say(f"{role}: {', '.join(domains)}")
    for note in check.notes:
        say(f"note: {note}")
    for warning in check.warnings:
        say(f"warning: {warning}", "yellow")


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(printable(text), style=style), soft_wrap=True)


def _next_step(check: DataCheck, request: DataRequest) -> str:
    """The command that trains on this data as it was checked."""
    defaults = type(request)(request.source)
    words = ["unseen", "train", request.source]
    if not check.hold_out:
        words += ["--hold-out", list(check.counts)[-1] if check.counts else "DOMAIN"]
    for option, name in (
        ("--domain-column", "domain_column"),
        ("--target", "target_column"),
        ("--task", "task"),
    ):
        if getattr(request, name) != getattr(defaults, name):
            words += [option, str(getattr(request, name))]
    return shlex.join(words)


def _grouped(check: DataCheck) -> dict[str, list[str]]:
    """Gather the files of each oddity, the most frequent first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, what in check.unusual.items():
        groups[what].append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))
