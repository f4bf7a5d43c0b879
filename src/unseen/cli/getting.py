"""`unseen data get`: download a named data set where that is allowed, else say how to come by it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from unseen.cli.console import INTERRUPTED, messages, print_json, results

if TYPE_CHECKING:
    from unseen.data.obtain import Outcome


def get_command(
    name: Annotated[str, typer.Argument(help="A named data set, see `unseen list data`.")],
    data_root: Annotated[
        Path | None, typer.Option(help="Where named data sets lie.", envvar="UNSEEN_DATA")
    ] = None,
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Also download what is not free for every use.")
    ] = False,
    mirror: Annotated[
        str, typer.Option(help="Address of a folder with the same files, to take them from.", metavar="URL")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Download a named data set, checked against published checksums, or say how to come by it.

    A download that was stopped goes on where it was. The exit code is 1 if something is left for you to do.

    Examples:

        unseen data get rotated-mnist --data-root data/

        unseen data get vlcs
    """
    from unseen.cli.waiting import LateBar
    from unseen.data.obtain import get_data

    root = data_root.expanduser() if data_root else None
    try:
        with LateBar(messages(), bytes=True) as bar:
            outcome = get_data(name, root=root, accept_terms=accept_terms, mirror=mirror, progress=bar)
    except KeyboardInterrupt:
        messages().print("\nStopped. The same command goes on where it was.")
        sys.exit(INTERRUPTED)
    if as_json:
        print_json(_plain(outcome))
    else:
        _show(outcome, results())
    if outcome.refused or outcome.explained:
        raise typer.Exit(1)


def _show(outcome: Outcome, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    if not (outcome.downloaded or outcome.present or outcome.refused or outcome.explained):
        say(f"{outcome.name} comes with the package: nothing to get")
    for title in outcome.present:
        say(f"{title}: already there")
    for title in outcome.downloaded:
        say(f"{title}: downloaded and checked", "green")
    for download in outcome.refused:
        say(f"{download.title}: not downloaded; licence: {download.licence}; --accept-terms accepts that")
    if told := outcome.explained:
        say(f"{outcome.name} is not downloaded: no checksum of it is published")
        say(f"licence: {told.licence}")
        say(f"where: {told.where}")
        say(f"put {told.put} below {outcome.root}")
        say(f"then: unseen data check {outcome.name}")


def _plain(outcome: Outcome) -> dict[str, object]:
    told = outcome.explained
    return {
        "name": outcome.name,
        "root": str(outcome.root),
        "downloaded": outcome.downloaded,
        "present": outcome.present,
        "terms_to_accept": {download.title: download.licence for download in outcome.refused},
        "to_do": {"licence": told.licence, "where": told.where, "put": told.put} if told else None,
    }
