"""Options generated from declarations: the fields of `RunConfig`, groups of options, and `--plugin`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
import typer
from click.core import ParameterSource

from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.registry import add_plugin_files

Command = Callable[..., None]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DataRoot = Annotated[Path | None, typer.Option(help="Folder of the named data sets.", envvar="UNSEEN_DATA")]


@dataclass(frozen=True)
class OptionGroup:
    """Several options that a command receives as one value.

    parameters  one per option, as typer reads them
    collect     makes the value from the parsed options
    """

    parameters: tuple[inspect.Parameter, ...]
    collect: Callable[[dict[str, Any]], Any]


def with_options(**groups: OptionGroup) -> Callable[[Command], Command]:
    """Replace the parameters of a command that are named here by the options of their groups."""

    def expand(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        parameters = [
            parameter
            for name, declared in own.parameters.items()
            for parameter in (groups[name].parameters if name in groups else (declared,))
        ]

        @wraps(command)
        def call(**values: Any) -> None:
            collected = {
                name: group.collect({item.name: values.pop(item.name) for item in group.parameters})
                for name, group in groups.items()
            }
            command(**values, **collected)

        return _with_parameters(call, parameters)

    return expand


def with_plugins(command: Command) -> Command:
    """Add `--plugin FILE` to a command: a file that registers methods, metrics and so on."""
    own = inspect.signature(command, eval_str=True)
    plugin = inspect.Parameter(
        "plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=PluginOption
    )

    @wraps(command)
    def call(plugin: list[str] | None, **values: Any) -> None:
        add_plugin_files(plugin or [])
        command(**values)

    return _with_parameters(call, [*own.parameters.values(), plugin])


def _with_parameters(command: Command, parameters: list[inspect.Parameter]) -> Command:
    """Give a wrapper the signature that typer reads."""
    named = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in parameters]
    vars(command).pop("__wrapped__", None)
    vars(command)["__signature__"] = inspect.Signature(named)
    command.__annotations__ = {item.name: item.annotation for item in named}
    return command


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Python file that registers methods, metrics, ... (repeatable).",
    ),
]


def option_group(kind: type[Any]) -> OptionGroup:
    """Make the options that the fields of a dataclass declare; the command receives an instance of it."""
    hints = get_type_hints(kind, include_extras=True)
    return OptionGroup(
        tuple(_parameter(item.name, hints[item.name], item.default) for item in fields(kind)),
        lambda values: kind(**values),
    )


def run_options(*, without: Collection[str] = (), panel: str | None = None) -> OptionGroup:
    """Make the options of `RunConfig`; the command receives those that were given, by field name.

    without  fields that the command handles itself
    panel    one panel for all of them, in place of the one each field declares
    """
    hints = get_type_hints(RunConfig)
    items = [item for item in fields(RunConfig) if "option" in item.metadata and item.name not in without]
    parameters = [made for item in items for made in _run_parameters(item, hints[item.name], panel)]
    tables = [item.name for item in items if get_origin(hints[item.name]) is Mapping]
    joined = [item.name for item in items if item.metadata["option"].joined]
    return OptionGroup(tuple(parameters), lambda values: _given(values, tables, joined))


_OLDER = "_older"
"""Suffix of the parameter that takes an older spelling."""


def _run_parameters(item: Field[Any], hint: Any, panel: str | None) -> list[inspect.Parameter]:
    """Make the option of a field, and a hidden one for an older spelling."""
    declared = item.metadata["option"]
    name = declared.spelling or item.name
    flag = declared.flag or "--" + name.replace("_", "-")
    listed = f" See `unseen list {declared.registry}`." if declared.registry else ""
    shown = typer.Option(
        flag,
        help=declared.help + listed,
        metavar=declared.metavar or ("|".join(declared.choices) or None),
        envvar=declared.envvar,
        rich_help_panel=panel or declared.panel,
    )
    kind, default = _command_line_type(hint), item.default
    if declared.joined:
        kind, default = list[str], [default]
    elif kind == list[str] or default is MISSING:
        default = None
    found = [_parameter(item.name, Annotated[kind | None, shown], default)]
    if declared.spelling:
        older = typer.Option("--" + item.name.replace("_", "-"), hidden=True)
        found.append(_parameter(item.name + _OLDER, Annotated[kind | None, older], None))
    return found


def _command_line_type(hint: Any) -> Any:
    """Return the type of one value; tuples and tables are repeated options."""
    if get_origin(hint) in (tuple, Mapping):
        return list[str]
    return next((kind for kind in get_args(hint) if kind is not NoneType), hint)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _given(values: dict[str, Any], tables: Collection[str], joined: Collection[str]) -> dict[str, Any]:
    """Keep what the user gave on the command line or in the environment; defaults are left to `RunConfig`."""
    context = click.get_current_context()
    given: dict[str, Any] = {}
    for name, value in values.items():
        if value is not None and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            field = name.removesuffix(_OLDER)
            given[field] = parse_settings(value) if field in tables else value
            if field in joined:
                given[field] = ",".join(value)
    return given


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Split `key=value` pairs."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"a setting is KEY=VALUE, not {pair!r}")
        settings[key.strip()] = value.strip()
    return settings
