"""`unseen data`: look at data before training on it."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True, help="Look at data.\n\nExample:\n\n    unseen data check my_data/")
