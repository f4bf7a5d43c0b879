"""The command line that repeats a run, read from its configuration."""

from __future__ import annotations

import shlex
from dataclasses import MISSING, fields
from typing import Any

_APART = ("data", "settings", "protect_settings")


def train_command(config: dict[str, Any]) -> list[str]:
    """`unseen train ...` for a shell, in pieces of an option with its value; empty if no data is named.

    Options that have their default value, or only say where a run happens, are left out.
    """
    from unseen.config import WHERE, RunConfig

    if not config.get("data"):
        return []
    pieces = [["unseen", "train", str(config["data"])]]
    for field in fields(RunConfig):
        value = config.get(field.name)
        usual = None if field.default is MISSING else field.default
        if field.name in (*_APART, *WHERE) or value is None or value == usual:
            continue
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, bool):
            pieces.append([flag])
        else:
            pieces += [[flag, str(each)] for each in (value if isinstance(value, list) else [value])]
    for flag, name in (("--set", "settings"), ("--protect-set", "protect_settings")):
        pieces += [[flag, f"{key}={_text(value)}"] for key, value in (config.get(name) or {}).items()]
    return [shlex.join(piece) for piece in pieces]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
