"""Flower's surroundings: it is there, and it tells nobody that it is."""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from unseen.errors import missing_extra

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower reports its use and looks for updates unless told not to, even for `--help`."""
PROMPT = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.4"}
"""Look for work more often than once a second."""


def require_flower() -> None:
    """Say what to install where Flower is missing, and keep it quiet in this process."""
    if find_spec("flwr") is None:
        raise missing_extra("flwr", "flower", "a federation across machines")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def flower_environment(home: Path, **more: str) -> dict[str, str]:
    """Give the variables for a Flower process: quiet unless the user chose, its files under `home`."""
    programs = str(Path(sys.executable).parent)
    return {
        **QUIET,
        **PROMPT,
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        **more,
    }


def flower_program(name: str) -> str:
    """Find one of Flower's programs beside this Python."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


LOOK_SECONDS, GRACE_SECONDS = 0.5, 3.0
OPTION = "--parent-pid"


def exit_with_parent() -> None:
    """End this process, at once and for sure, a moment after the one that its command line names."""
    if OPTION in sys.argv[:-1]:
        parent = Path("/proc") / sys.argv[sys.argv.index(OPTION) + 1]
        if parent.exists():
            threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: Path) -> None:
    while parent.exists():
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
