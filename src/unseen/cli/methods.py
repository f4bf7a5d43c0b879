"""Methods as `unseen list methods` shows them: one line each, or one with all its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from unseen.cli.console import messages, print_json, results
from unseen.methods import Method, describe_settings, make_method
from unseen.methods.method_costs import Cost, measured_costs
from unseen.privacy import make_protection

AnyMethod = type[Method[Any]]
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
    costs, console = measured_costs(), _console()
    table = _table(COLUMNS, wrapping=LEAVES)
    for method in methods:
        table.add_row(*_row(method, costs.methods.get(method.name)))
    console.print(table)
    if console.is_terminal:
        messages().print(NOTES.format(costs.job or "not measured yet"), style="dim")


def describe_method(method: AnyMethod, *, as_json: bool) -> None:
    """All that is known of a method, then its settings."""
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
        table = _table(tuple(settings[0]), wrapping="meaning")
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
    return ", ".join(kind for kind in sends if kind not in Method.sends) or "nothing"


def _sends(method: AnyMethod) -> tuple[str, ...]:
    """What leaves a client with the method's default settings."""
    return make_method(method.name).sends


def _server_sees(method: AnyMethod) -> str:
    serves = make_protection("secure-sum").why_not(make_method(method.name).facts) is None
    return "sums" if serves else "each client"


def _ratio(value: float | None) -> str:
    """Three digits, so that a column stays narrow."""
    return NOTHING if value is None else f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _console() -> Console:
    """Standard output, of a fixed width where it is no terminal."""
    console = results()
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _table(columns: Sequence[str], *, wrapping: str) -> Table:
    """Bare columns, of which one takes what room is left."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in ("time", "bytes")
        table.add_column(column, no_wrap=column != wrapping, justify="right" if right else "left")
    return table
