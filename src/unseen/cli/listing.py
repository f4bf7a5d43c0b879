"""`unseen list`: what can be named in other commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from unseen.cli.console import print_json, results

app = typer.Typer(no_args_is_help=True, help="List what can be named.\n\nExample:\n\n    unseen list methods")
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]], *, as_json: bool) -> None:
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    results().print(table)


@app.command("methods")
def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this method.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods, or the settings of one.

    Examples:

        unseen list methods

        unseen list methods fedavg
    """
    from unseen.methods import METHODS, describe_settings

    if name is not None:
        settings = describe_settings(METHODS[name].settings_type())
        described = [(key, str(default), meaning) for key, default, meaning in settings]
        _show(("setting", "default", "meaning"), described, as_json=as_json)
        return
    rows = [
        (
            entry.name,
            entry.summary,
            f"{entry.paper.authors.split(',')[0]} {entry.paper.year}",
            ", ".join(entry.sends),
            "individual updates" if entry.needs_individual_updates else "sums",
        )
        for entry in (METHODS[key] for key in METHODS)
    ]
    _show(("method", "what it does", "paper", "leaves a client", "server needs"), rows, as_json=as_json)


@app.command("models")
def models(as_json: AsJson = False) -> None:
    """List the models; every other timm name works too.

    Example:

        unseen list models
    """
    from unseen.models import list_models

    rows = [tuple(str(value) for value in row) for row in list_models()]
    _show(("model", "what it is"), [row[:2] for row in rows], as_json=as_json)


@app.command("data")
def data(as_json: AsJson = False) -> None:
    """List the named data sets; folders and tables work too.

    Example:

        unseen list data
    """
    from unseen.data import list_sources

    rows = [
        (name, source.description, source.domains, "files needed" if source.needs_files else "included")
        for name, source in list_sources()
    ]
    _show(("data", "what it is", "domains", "files"), rows, as_json=as_json)
