"""Every place where Unseen relies on Flower beyond its documented API, for the versions in pyproject.toml.

Patched or assumed: the SuperLink's `create_app`, the entry points and command names of its app processes,
their option `--parent-pid`, three environment variables, two texts in the SuperNode's log and one error code.
`tests/deploy/flower/test_compat.py` checks each of them against the installed Flower, so that an update which
renames one fails there and not at a site.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unseen.child_processes import exit_after
from unseen.errors import missing_extra

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Turn off telemetry and update checks, which Flower otherwise does even for `--help`."""
POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.4"}
"""Poll for new tasks more often than the default of once per second."""
APP_PROGRAMS = ("flwr-clientapp", "flwr-serverapp")
"""Programs that SuperNode and SuperLink start per message and per run, looked up in PATH."""
PARENT_OPTION = "--parent-pid"
CONNECTED_LOG = re.compile(r"SuperNode ID: \d+")
REFUSED_LOG = "[code: 2004]"
NODE_UNAVAILABLE = 5
"""Error code of a reply whose node disconnected while it was working."""
PARENT_POLL_SECONDS, PARENT_GRACE_SECONDS = 0.5, 3.0


def require_flower() -> None:
    """Raise an error that names the extra if Flower is missing; keep it quiet in this process."""
    if find_spec("flwr") is None:
        raise missing_extra("flwr", "flower", "a federation across machines")
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def flower_environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a Flower process: quiet unless the user overrides it, its files in `home`."""
    programs = str(Path(sys.executable).parent)
    return {
        **QUIET,
        **POLLING,
        **os.environ,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", "")]),
        **more,
    }


def flower_program(name: str) -> str:
    """Find one of Flower's programs next to this Python interpreter."""
    path = Path(sys.executable).parent / name
    return str(path) if path.exists() else name


def run_superlink(middleware: Callable[[Any], Any]) -> None:
    """Run `flower-superlink` with `middleware` in front of its web application."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink

    create_app = superlink.create_app

    def create_guarded_app(*arguments: Any, **options: Any) -> Any:
        app = create_app(*arguments, **options)
        app.add_middleware(middleware)
        return app

    superlink.create_app = create_guarded_app
    flower_superlink()


def app_entry_points() -> dict[str, Callable[[], None]]:
    """Import the functions behind Flower's app programs, to call them in a forked process."""
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    return {"flwr-clientapp": flwr_clientapp, "flwr-serverapp": flwr_serverapp}


def exit_with_parent() -> None:
    """End this app process soon after the Flower process that its command line names as parent.

    Flower interrupts its app processes when the parent is gone. An interrupt during a send is lost: the
    process would retry forever, and a command that follows its run would wait.
    """
    if PARENT_OPTION in sys.argv[:-1]:
        parent = Path("/proc") / sys.argv[sys.argv.index(PARENT_OPTION) + 1]
        if parent.exists():
            exit_after(partial(_wait_until_gone, parent), grace_seconds=PARENT_GRACE_SECONDS)


def _wait_until_gone(process: Path) -> None:
    while process.exists():
        time.sleep(PARENT_POLL_SECONDS)
