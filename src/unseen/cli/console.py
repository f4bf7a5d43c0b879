"""Consoles: results go to standard output, progress and messages to standard error."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""


def messages() -> Console:
    """Return the console for progress and messages."""
    return Console(stderr=True, highlight=False)


def results() -> Console:
    """Return the console for tables; wide enough for them when output goes to a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def print_json(value: Any) -> None:
    """Print a result for machines."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
