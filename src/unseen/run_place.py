"""Which folder a run lies in, and what the one that lies there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unseen.config import RunConfig
from unseen.engine import RunFolder
from unseen.errors import UsageError

NAMED_DOMAINS = 3
"""Of more held-out domains, a run folder's name has these."""


def default_folder(config: RunConfig, *, resume: bool) -> Path:
    """Choose a run folder under runs/: the newest of that name to resume, else the first that is free."""
    held_out = config.hold_out[:NAMED_DOMAINS]
    if more := len(config.hold_out) - len(held_out):
        held_out = (*held_out, f"{more}-more")
    parts = [Path(config.data).stem, *held_out, config.method, str(config.seed)]
    base = Path("runs") / "-".join(part.replace("/", "_") for part in parts)
    names = [base, *(base.with_name(f"{base.name}.{number}") for number in range(2, 1000))]
    free = next(position for position, path in enumerate(names) if not path.exists())
    return names[max(free - 1, 0)] if resume else names[free]


def resume_config(folder: Path, given: dict[str, Any]) -> RunConfig:
    """Read the configuration of an unfinished run, with what the caller says of where it runs now."""
    path = RunFolder(folder).config
    if not path.exists():
        raise UsageError(f"{folder} holds no run to go on with (no config.toml)")
    recorded = RunConfig.load(path)
    return RunConfig.from_mapping({**vars(recorded), **given})
