"""Every place where Unseen relies on Flower beyond its documented API, for the versions in pyproject.toml.

Patched or assumed: the SuperLink's `create_app`, the pauses of the SuperNode's loop, the entry points and
command names of its app processes, their option `--parent-pid`, what a client process does with an app
bundle, the HTTP client of its programs, three environment variables, two texts in the SuperNode's log and two
error codes.
`tests/deploy/flower/test_compat.py` checks each of them against the installed Flower, so that an update which
renames one fails there and not at a site.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from unseen.child_processes import exit_after
from unseen.errors import UnseenError, missing_extra

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Turn off telemetry and update checks, which Flower otherwise does even for `--help`."""
POLLING = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.4"}
"""Poll for new tasks more often than the default of once per second."""
CLIENT_PROGRAM, SERVER_PROGRAM = "flwr-clientapp", "flwr-serverapp"
"""Programs that SuperNode and SuperLink start per message and per run, looked up in PATH."""
TASK_PROGRAMS = (
    *(CLIENT_PROGRAM, SERVER_PROGRAM, "flwr-simulation", "flwr-agentapp", "flwr-model", "flwr-connector"),
)
"""All programs that a job can make Flower start; which one is the coordinator's choice."""
LAUNCHER_PROGRAM = "flower-superexec"
"""The program that starts them, itself looked up in PATH."""
PARENT_OPTION = "--parent-pid"
CONNECTED_LOG = re.compile(r"SuperNode ID: \d+")
REFUSED_LOG = "[code: 2004]"
TOKEN_VARIABLE, TOKEN_HEADER = "UNSEEN_GATE_TOKEN", "x-unseen-token"
"""How Flower's processes on the coordinator's machine are given the gate's token, and how they send it."""
THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
APP_ERROR = 2
"""Error code of a reply whose app failed or refused."""
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
    return str(path) if path.exists() else shutil.which(name) or name


def path_without_flower(path: str) -> str:
    """Leave out the folders of PATH in which Flower's own app programs would be found."""
    kept = [part for part in path.split(os.pathsep) if part and not (Path(part) / CLIENT_PROGRAM).exists()]
    return os.pathsep.join(kept)


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


def run_supernode(pauses: Any) -> None:
    """Run `flower-supernode` with `pauses` in place of the module `time` in its loop."""
    module = importlib.import_module("flwr.supernode.start_client_internal")
    if getattr(module, "time", None) is time:
        setattr(module, "time", pauses)  # noqa: B010 (a patch)
    flower_entry_point("flower-supernode")()


def flower_entry_point(program: str) -> Callable[[], None]:
    """Import the function behind one of Flower's programs."""
    (point,) = entry_points(group="console_scripts", name=program)
    run: Callable[[], None] = point.load()
    return run


def send_token() -> None:
    """Send the gate's token, if this process has one, with every request to a server on this machine."""
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        return
    from flwr.supercore.protobuf.client import ProtobufClient

    make = ProtobufClient.__init__

    def make_with_token(self: Any, base_url: str, **options: Any) -> None:
        make(self, base_url, **options)
        if urlsplit(base_url).hostname in THIS_MACHINE:
            self._client.headers[TOKEN_HEADER] = token

    setattr(ProtobufClient, "__init__", make_with_token)  # noqa: B010 (a patch)


CLIENT_STEPS = ("install_from_fab", "install_app_dependencies", "get_load_client_app_fn")
"""Everything that `flwr-clientapp` does with an app bundle; each is replaced."""


def run_clientapp_with(choose: Callable[[str, bytes], Any]) -> None:
    """Run `flwr-clientapp` with an app of ours; of the job's bundle nothing is unpacked, installed or loaded.

    choose  is given the app's name and its bundle, and returns what answers the message
    """
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as module

    missing = [name for name in CLIENT_STEPS if not hasattr(module, name)]
    if missing:
        raise UnseenError(
            f"this version of Flower loads apps in another way ({missing[0]} is gone), so no job is run; "
            "install the version that Unseen asks for: pip install 'unseen[flower]'"
        )
    bundles: list[bytes] = []

    def refuse(*_: Any, **__: Any) -> None:
        raise UnseenError("a job cannot install anything at this site")

    steps = (
        lambda bundle, **_: bundles.append(bundle),
        refuse,
        lambda **_: lambda name, version, digest: choose(name, bundles[-1]),
    )
    for name, step in zip(CLIENT_STEPS, steps, strict=True):
        setattr(module, name, step)
    flwr_clientapp()


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
