"""`unseen list KIND`: the entries of every registry, one line each, with more columns for some kinds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unseen.cli.console import messages, print_json, results
from unseen.cli.options import with_plugins
from unseen.registry import REGISTRIES, find_registry

if TYPE_CHECKING:
    from unseen.methods import Method
    from unseen.methods.method_costs import Cost


app = typer.Typer(
    no_args_is_help=True,
    help="List the names that other commands accept, including those of plugins.\n\n"
    "Examples:\n\n    unseen list methods\n\n    unseen list optimizers --plugin my_optimizer.py",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
WIDTH = 100
UNKNOWN = "-"
LEAVES = "leaves a client besides weights"
COLUMNS = ("method", "paper", "year", LEAVES, "server sees", "time", "bytes")
NOTES = """\
weights: the model's weights and the number of samples
sums: works with secure summation; each client: the server must see every client's update
time, bytes: per round, relative to FedAvg ({})
unseen list methods NAME shows a method and its settings"""


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, as_json: bool) -> None:
    """Print rows as a table, or as JSON objects keyed by column."""
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*map(escape, row))
    results().print(table)


def list_registry(kind: str, name: str | None, *, as_json: bool) -> None:
    """Print one line per entry of a registry, or the settings of one entry."""
    registry = find_registry(kind)
    if name is not None:
        settings = [(key, str(default), meaning) for key, default, meaning in _settings_of(registry[name])]
        if not settings and not as_json:
            results().print(
                f"{name}: {summarize(registry[name]).removesuffix('.')}. It has no settings.", soft_wrap=True
            )
            return
        show_table(("setting", "default", "meaning"), settings, as_json=as_json)
        return
    rows = [(key, summarize(registry[key])) for key in registry]
    show_table((kind.removesuffix("s"), "what it is"), rows, as_json=as_json)


def summarize(entry: Any) -> str:
    """Describe an entry in one line: its `description`, `summary`, `title` or docstring's first line."""
    for name in ("description", "summary", "title"):
        text = getattr(entry, name, None)
        if text and isinstance(text, str):
            return text
    return (inspect.getdoc(entry) or "").partition("\n")[0]


def _settings_of(entry: Any) -> list[tuple[str, Any, str]]:
    """Return (name, default, meaning) of every setting that an entry takes."""
    from unseen.hparams import Settings, describe_settings

    if isinstance(entry, type) and issubclass(entry, Settings):
        return describe_settings(entry)
    if inspect.isfunction(entry):
        from unseen.data.augmentation import settings_of

        return [
            (name, f"{default:.3g}", f"{bounds.meaning} ({bounds.low:g} to {bounds.high:g})")
            for name, default, bounds in settings_of(entry)
        ]
    return describe_settings(entry.settings_type()) if hasattr(entry, "settings_type") else []


@app.command("methods")
@with_plugins
def list_methods(
    name: Annotated[str | None, typer.Argument(help="Show this method and its settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the methods by family with what leaves a client and what a round costs, or describe one.

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
        print_methods()


@app.command("protections")
@with_plugins
def list_protections(
    name: Annotated[str | None, typer.Argument(help="Show this protection's settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the protections of updates before they leave a client, or the settings of one.

    Examples:

        unseen list protections

        unseen list protections secure-sum
    """
    from unseen.privacy import PROTECTIONS

    if name is not None:
        list_registry("protections", name, as_json=as_json)
        return
    known = [PROTECTIONS[key] for key in PROTECTIONS]
    rows = [(kind.name, kind.summary, f"unseen[{kind.extra}]" if kind.extra else "") for kind in known]
    show_table(("protection", "what it does", "needs"), rows, as_json=as_json)


@app.command("models")
@with_plugins
def list_models(as_json: AsJson = False) -> None:
    """List the models; every other timm name works too.

    Example:

        unseen list models
    """
    from unseen.models import list_models

    rows = [tuple(str(value) for value in row) for row in list_models()]
    show_table(("model", "what it is"), [row[:2] for row in rows], as_json=as_json)


@app.command("data")
@with_plugins
def list_data(
    name: Annotated[str | None, typer.Argument(help="Show the settings of this data set.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the named data sets, or the settings of one; folders and tables work too.

    Examples:

        unseen list data

        unseen list data rotated-mnist
    """
    from unseen.data import list_sources

    if name is not None:
        list_registry("data", name, as_json=as_json)
        return

    rows = [
        (name, source.summary, source.domains, "files needed" if source.needs_files else "included")
        for name, source in list_sources()
    ]
    show_table(("data", "what it is", "domains", "files"), rows, as_json=as_json)


@app.command("recipes")
@with_plugins
def list_recipes(
    data_root: Annotated[
        str | None, typer.Option(help="Folder of the named data sets.", envvar="UNSEEN_DATA")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tables and figures that `unseen reproduce` can make.

    Example:

        unseen list recipes
    """
    from unseen.cli.reproduce_command import print_recipes

    print_recipes(Path(data_root).expanduser() if data_root else None, as_json=as_json)


AnyMethod: TypeAlias = "type[Method[Any]]"


def print_methods() -> None:
    """Print a table per family, with aligned columns; the notes at the end are left out when piped."""
    from unseen.methods import FAMILIES, group_by_family
    from unseen.methods.method_costs import measured_costs

    costs, console = measured_costs(), _console()
    groups = {
        family: [_row(method, costs.methods.get(method.name)) for method in methods]
        for family, methods in group_by_family().items()
    }
    rows = [COLUMNS, *(row for group in groups.values() for row in group)]
    widths = {
        column: max(map(len, cells))
        for column, *cells in zip(COLUMNS, *rows, strict=True)
        if column != LEAVES
    }
    for family, group in groups.items():
        console.print(f"\n{family}: {FAMILIES[family]}", style="bold")
        table = _bare_table(COLUMNS, wrapping=LEAVES, widths=widths)
        for row in group:
            table.add_row(*row)
        console.print(table)
    if console.is_terminal:
        messages().print(NOTES.format(costs.job or "not measured yet"), style="dim")


def describe_method(method: AnyMethod, *, as_json: bool) -> None:
    """Print the facts about a method, then its settings."""
    from unseen.methods import FAMILIES, describe_settings
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
    console.print(f"family: {method.find_family()} ({FAMILIES[method.find_family()]})")
    console.print(f"leaves a client: {', '.join(_sends(method))}")
    console.print(f"the server sees: {_server_sees(method)}")
    if cost is not None:
        ratios = f"time {_ratio(cost.seconds_ratio)}, bytes {_ratio(cost.bytes_ratio)}"
        console.print(f"per round, relative to FedAvg: {ratios}")
    if settings:
        table = _bare_table(tuple(settings[0]), wrapping="meaning")
        for row in settings:
            table.add_row(*row.values())
        console.print(table)


def facts_of(method: AnyMethod, cost: Cost | None) -> dict[str, Any]:
    """Describe a method for programs; `cost` is null where it was not measured."""
    return {
        "method": method.name,
        "family": method.find_family(),
        "summary": method.summary,
        "paper": asdict(method.paper),
        "sends": list(_sends(method)),
        "needs_individual_updates": method.needs_individual_updates,
        "cost": None if cost is None else asdict(cost),
    }


def _row(method: AnyMethod, cost: Cost | None) -> tuple[str, ...]:
    """Return the cells of a line."""
    first_author, year = method.paper.authors.split(",")[0], str(method.paper.year)
    ratios = (None, None) if cost is None else (cost.seconds_ratio, cost.bytes_ratio)
    return (
        method.name,
        first_author,
        year,
        sent_besides_weights(_sends(method)),
        _server_sees(method),
        *map(_ratio, ratios),
    )


def sent_besides_weights(sends: Sequence[str]) -> str:
    """Name what leaves a client, without weights and sample counts, which nearly every method sends."""
    from unseen.methods import Method

    return ", ".join(kind for kind in sends if kind not in Method.sends) or "nothing"


def _sends(method: AnyMethod) -> tuple[str, ...]:
    """Return what leaves a client with the method's default settings."""
    from unseen.methods import make_method

    return make_method(method.name).sends


def _server_sees(method: AnyMethod) -> str:
    from unseen.methods import make_method
    from unseen.privacy import make_protection

    serves = make_protection("secure-sum").incompatibility(make_method(method.name).traits) is None
    return "sums" if serves else "each client"


def _ratio(value: float | None) -> str:
    """Write three digits, so that a column stays narrow."""
    return UNKNOWN if value is None else f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _console() -> Console:
    """Return the console of results, of a fixed width where output is piped."""
    console = results()
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _bare_table(columns: Sequence[str], *, wrapping: str, widths: Mapping[str, int] | None = None) -> Table:
    """Make a table without lines; one column takes the remaining width.

    widths  of the other columns, where several tables are to be aligned; none = as their cells need
    """
    table = Table(box=None, pad_edge=False, expand=widths is not None)
    for column in columns:
        table.add_column(
            column,
            no_wrap=column != wrapping,
            justify="right" if column in ("time", "bytes") else "left",
            width=widths[column] if widths and column != wrapping else None,
            ratio=1 if widths and column == wrapping else None,
        )
    return table


def _add_command(kind: str) -> None:
    """Add `unseen list KIND` for a registry without more columns."""
    words = kind.replace("-", " ")

    def command(
        name: Annotated[str | None, typer.Argument(help="Show the settings of this entry.")] = None,
        as_json: AsJson = False,
    ) -> None:
        list_registry(kind, name, as_json=as_json)

    command.__doc__ = f"List the {words}, or the settings of one.\n\nExample:\n\n    unseen list {kind}"
    app.command(kind)(with_plugins(command))


_RICHER = {command.name for command in app.registered_commands}


for _kind in REGISTRIES:
    if _kind not in _RICHER:
        _add_command(_kind)
