"""The commands. Heavy libraries are imported inside them, so that help appears at once."""

from unseen.cli.main import main

__all__ = ["main"]
