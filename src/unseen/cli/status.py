"""`unseen status`: which sites are there, and what ran."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.console import print_json, results
from unseen.cli.up import DEFAULT_HOME, HomeOption

if TYPE_CHECKING:
    from unseen.deploy.status import FederationStatus


def status_command(
    home: HomeOption = DEFAULT_HOME,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Show the sites that a coordinator knows and the runs it has had. Run it on the coordinator's machine.

    Example:

        unseen status --home federation
    """
    from unseen.deploy.status import federation_status

    status = federation_status(home)
    if as_json:
        print_json(status.to_dict())
    else:
        _show(status, home)


def _show(status: FederationStatus, home: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    console = results()
    online = sum(site.status == "online" for site in status.sites)
    runs = "1 run" if len(status.runs) == 1 else f"{len(status.runs)} runs"
    console.print(Text(f"{home}: {online} of {len(status.sites)} sites connected, {runs}", "bold"))
    for title, rows in (("site", status.sites), ("run", status.runs)):
        if not rows:
            continue
        table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
        for column in (title, "state", "since"):
            table.add_column(column)
        for row in rows:
            style = "green" if row.status in ("online", "running") else ""
            table.add_row(Text(row.name), Text(row.status, style), Text(row.since))
        console.print(table)
