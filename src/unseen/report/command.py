"""The command line that repeats a run, read from its configuration."""

from __future__ import annotations

import shlex
from typing import Any

OPTIONS = (
    "method", "model", "hold_out", "task", "rounds", "local_epochs", "batch_size", "lr", "image_size",
    "weights", "seed", "clients_per_domain", "partition", "fraction", "selection", "engine",
)  # fmt: skip
SAME = {"held_out": "hold_out"}
SETTINGS = ("settings", "method_settings", "set")


def train_command(config: dict[str, Any]) -> list[str]:
    """`unseen train ...` for a shell, in pieces of an option with its value; empty if no data is named."""
    flat, settings = _flatten(config)
    data = flat.get("data") or flat.get("name")
    if not data:
        return []
    pieces = [["unseen", "train", str(data)]]
    for option in OPTIONS:
        value = flat.get(option)
        if value is None or value == "" or isinstance(value, bool):
            continue
        values = value if isinstance(value, list) else [value]
        pieces += [["--" + option.replace("_", "-"), _text(each)] for each in values]
    pieces += [["--set", f"{key}={_text(value)}"] for key, value in settings.items()]
    return [shlex.join(piece) for piece in pieces]


def _flatten(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    flat: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in SETTINGS and isinstance(value, dict):
            settings |= value
        elif isinstance(value, dict):
            named = {key: value["name"]} if "name" in value else {}
            inner, more = _flatten({k: v for k, v in value.items() if k != "name"})
            flat = inner | named | flat
            settings |= more
        else:
            flat[SAME.get(key, key)] = value
    return flat, settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
