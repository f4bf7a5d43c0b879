"""`unseen list`: what can be named in other commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unseen.cli.console import messages, print_json, results

if TYPE_CHECKING:
    from unseen.methods import Method
    from unseen.methods.method_costs import Cost

app = typer.Typer(no_args_is_help=True, help="List what can be named.\n\nExample:\n\n    unseen list methods")
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, as_json: bool) -> None:
    """Print rows as a table, or as JSON objects keyed by column."""
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
        show_table(("setting", "default", "meaning"), rows, as_json=as_json)
        return
    known = [PROTECTIONS[key] for key in PROTECTIONS]
    rows = [(kind.name, kind.summary, f"unseen[{kind.extra}]" if kind.extra else "") for kind in known]
    show_table(("protection", "what it does", "needs"), rows, as_json=as_json)


@app.command("models")
def models(as_json: AsJson = False) -> None:
    """List the models; every other timm name works too.

    Example:

        unseen list models
    """
    from unseen.models import list_models

    rows = [tuple(str(value) for value in row) for row in list_models()]
    show_table(("model", "what it is"), [row[:2] for row in rows], as_json=as_json)


@app.command("data")
def data(as_json: AsJson = False) -> None:
    """List the named data sets; folders and tables work too.

    Example:

        unseen list data
    """
    from unseen.data import list_sources

    rows = [
        (name, source.summary, source.domains, "files needed" if source.needs_files else "included")
        for name, source in list_sources()
    ]
    show_table(("data", "what it is", "domains", "files"), rows, as_json=as_json)


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
    from unseen.cli.reproduce_command import print_recipes

    print_recipes(Path(data_root).expanduser() if data_root else None, as_json=as_json)


AnyMethod: TypeAlias = "type[Method[Any]]"
WIDTH = 100
NOTHING = "-"
LEAVES = "leaves a client beside weights"
COLUMNS = ("method", "paper", "year", LEAVES, "server sees", "time", "bytes")
NOTES = """\
weights: the model's weights and the number of samples
sums: secure summation can serve; each client: the server must see every client's own update
time, bytes: of a round, in units of FedAvg's ({})
unseen list methods NAME shows a method and its settings"""


def print_methods(methods: Sequence[AnyMethod]) -> None:
    """One line a method; the notes below the table are for eyes, and left out when piped."""
    from unseen.methods.method_costs import measured_costs

    costs, console = measured_costs(), _console()
    table = _bare_table(COLUMNS, wrapping=LEAVES)
    for method in methods:
        table.add_row(*_row(method, costs.methods.get(method.name)))
    console.print(table)
    if console.is_terminal:
        messages().print(NOTES.format(costs.job or "not measured yet"), style="dim")


def describe_method(method: AnyMethod, *, as_json: bool) -> None:
    """All that is known of a method, then its settings."""
    from unseen.methods import describe_settings
    from unseen.methods.method_costs import measured_costs

    cost = measured_costs().methods.get(method.name)
    settings = [
        {"setting": name, "default": str(default), "meaning": meaning}
        for name, default, meaning in describe_settings(method.settings_type())
    ]
    if as_json:
        print_json({**facts_of(method, cost), "settings": settings})
        return
    console, paper = _console(), method.paper
    console.print(f"{method.name}: {method.summary}")
    console.print(f"{paper.authors}: {paper.title}. {paper.venue} {paper.year}")
    console.print(f"leaves a client: {', '.join(_sends(method))}")
    console.print(f"the server sees: {_server_sees(method)}")
    if cost is not None:
        ratios = f"time {_ratio(cost.seconds_ratio)}, bytes {_ratio(cost.bytes_ratio)}"
        console.print(f"a round, in units of FedAvg's: {ratios}")
    if settings:
        table = _bare_table(tuple(settings[0]), wrapping="meaning")
        for row in settings:
            table.add_row(*row.values())
        console.print(table)


def facts_of(method: AnyMethod, cost: Cost | None) -> dict[str, Any]:
    """What programs can know of a method; `cost` is null where it was not measured."""
    return {
        "method": method.name,
        "summary": method.summary,
        "paper": asdict(method.paper),
        "sends": list(_sends(method)),
        "needs_individual_updates": method.needs_individual_updates,
        "cost": None if cost is None else asdict(cost),
    }


def _row(method: AnyMethod, cost: Cost | None) -> tuple[str, ...]:
    """The cells of a line."""
    first_author, year = method.paper.authors.split(",")[0], str(method.paper.year)
    ratios = (None, None) if cost is None else (cost.seconds_ratio, cost.bytes_ratio)
    return (
        method.name,
        first_author,
        year,
        leaves_beside_weights(_sends(method)),
        _server_sees(method),
        *map(_ratio, ratios),
    )


def leaves_beside_weights(sends: Sequence[str]) -> str:
    """What leaves a client, without the two that do in nearly every method."""
    from unseen.methods import Method

    return ", ".join(kind for kind in sends if kind not in Method.sends) or "nothing"


def _sends(method: AnyMethod) -> tuple[str, ...]:
    """What leaves a client with the method's default settings."""
    from unseen.methods import make_method

    return make_method(method.name).sends


def _server_sees(method: AnyMethod) -> str:
    from unseen.methods import make_method
    from unseen.privacy import make_protection

    serves = make_protection("secure-sum").incompatibility(make_method(method.name).traits) is None
    return "sums" if serves else "each client"


def _ratio(value: float | None) -> str:
    """Three digits, so that a column stays narrow."""
    return NOTHING if value is None else f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _console() -> Console:
    """Standard output, of a fixed width where it is no terminal."""
    console = results()
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _bare_table(columns: Sequence[str], *, wrapping: str) -> Table:
    """Bare columns, of which one takes what room is left."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in ("time", "bytes")
        table.add_column(column, no_wrap=column != wrapping, justify="right" if right else "left")
    return table
