"""`unseen list`: what can be named in other commands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
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
        table.add_row(*map(escape, row))
    results().print(table)


@app.command("methods")
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method and its settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods with what leaves a client and what a round costs, or describe one.

    Examples:

        unseen list methods

        unseen list methods fedavg
    """
    from unseen.cli.methods import describe_method, facts_of, print_methods
    from unseen.methods import METHODS
    from unseen.methods.method_costs import measured_costs

    if name is not None:
        describe_method(METHODS[name], as_json=as_json)
    elif as_json:
        costs = measured_costs().methods
        print_json([facts_of(METHODS[key], costs.get(key)) for key in METHODS])
    else:
        print_methods([METHODS[key] for key in METHODS])


@app.command("protections")
def protections(
    name: Annotated[str | None, typer.Argument(help="Show this protection's settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """List what can be done to updates before they leave a client, or the settings of one.

    Examples:

        unseen list protections

        unseen list protections secure-sum
    """
    from unseen.hparams import describe_settings
    from unseen.privacy import PROTECTIONS

    if name is not None:
        settings = describe_settings(PROTECTIONS[name].settings_type())
        rows = [(key, str(default), meaning) for key, default, meaning in settings]
        _show(("setting", "default", "meaning"), rows, as_json=as_json)
        return
    known = [PROTECTIONS[key] for key in PROTECTIONS]
    rows = [(kind.name, kind.summary, f"unseen[{kind.extra}]" if kind.extra else "") for kind in known]
    _show(("protection", "what it does", "needs"), rows, as_json=as_json)


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


@app.command("recipes")
def recipes(
    data_root: Annotated[
        str | None, typer.Option(help="Where named data sets lie.", envvar="UNSEEN_DATA")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tables and figures that `unseen reproduce` makes again.

    Example:

        unseen list recipes
    """
    from unseen.cli.recipe_view import print_recipes

    print_recipes(Path(data_root).expanduser() if data_root else None, as_json=as_json)
