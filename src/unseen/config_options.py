"""Declarations of options: each field of `RunConfig` says once what its command-line option is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DATA = "Data"
CLIENTS = "Clients"
TRAINING = "Training"
PROTECTED = "Protection"
EXECUTION = "Execution"


@dataclass(frozen=True)
class Option:
    """The command-line option of a `RunConfig` field.

    help      one or two short sentences
    panel     group in `--help`
    choices   every allowed value, where the set is closed
    registry  the kind of `unseen list KIND` that lists the names
    checked   whether a name must be in the registry (model names may also come from timm)
    spelling  current name of a field that keeps an older one in files; both are accepted
    flag      option on the command line, if not made from the name
    metavar   placeholder for the value in `--help`
    envvar    environment variable that is the default
    joined    whether the option may be repeated, and its values are joined by commas
    """

    help: str
    panel: str
    choices: tuple[str, ...] = ()
    registry: str = ""
    checked: bool = True
    spelling: str = ""
    flag: str = ""
    metavar: str | None = None
    envvar: str | None = None
    joined: bool = False


def option(default: Any, help: str, panel: str, **details: Any) -> Any:
    """Declare a field with its option; `default` may be a type that makes it, or MISSING if there is none."""
    kind = "default_factory" if isinstance(default, type) else "default"
    return field(**{kind: default}, metadata={"option": Option(help, panel, **details)})
