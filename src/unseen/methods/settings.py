"""A method's settings; what they are built of serves protections too and lies in `unseen.settings`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from unseen import settings
from unseen.methods.ranges import Range
from unseen.settings import Settings, describe_settings, make_settings

__all__ = ["Settings", "describe_settings", "make_settings", "search_ranges", "setting"]


def setting(default: Any, meaning: str, *, search: Range | None = None) -> Any:
    """Declare a setting: its paper's default, what it means (edge values included), what to search over."""
    return settings.setting(default, meaning, search=search)


def search_ranges(kind: type[Settings]) -> dict[str, Range]:
    """The settings that have a range to search over."""
    return {item.name: item.metadata["search"] for item in fields(kind) if item.metadata.get("search")}
