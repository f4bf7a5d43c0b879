"""Pre-forked app processes: Flower starts one per message, and importing PyTorch takes seconds.

SuperNode and SuperLink start such processes as `flwr-clientapp` and `flwr-serverapp`, looked up in PATH.
Launcher scripts of these names, placed first in PATH, pass their arguments to a server process that has
imported everything already and forks per request. Every message still gets a fresh process. If the server
cannot be reached, a launcher starts the same program by itself, so that only speed depends on this.

At a site, the launchers of all programs that a job can ask for lead to `client_program.py`, which runs no
code of the job, and Flower's own programs are not found in PATH.

    python -m unseen.deploy.flower.prefork FOLDER    serves forks until the process that started it ends
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

from unseen.deploy.flower.client_program import run_client_program
from unseen.deploy.flower.compat import (
    LAUNCHER_PROGRAM,
    SERVER_PROGRAM,
    TASK_PROGRAMS,
    flower_entry_point,
    flower_program,
    send_token,
)
from unseen.fileio import write_text

SOCKET = "requests"
POLL_SECONDS = 0.5
Role = Literal["site", "coordinator"]
SITE: Role = "site"
COORDINATOR: Role = "coordinator"
_MODULE = (sys.executable, "-P", "-m")
PRELOADED = (
    "cryptography.hazmat.primitives.serialization",
    "flwr.superlink.cli",
    "flwr.supernode.cli",
    "unseen.deploy.apps",
    "unseen.deploy.coordinator.coordinator",
    "unseen.deploy.site.ledger",
    "unseen.deploy.site.site",
)
CONNECT_SCRIPT = """\
import json, os, socket, sys
place, role, *arguments = sys.argv[1:]
request = {"role": role, "arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
with socket.socket(socket.AF_UNIX) as pipe:
    os.chdir(place)
    pipe.connect("requests")
    socket.send_fds(pipe, [b"+"], [1, 3])
    pipe.sendall(json.dumps(request).encode() + b"\\n")
    sys.exit(pipe.recv(1) != b"+")
"""


def write_launchers(folder: Path, *, role: Role, server: Path | None = None) -> None:
    """Write the launcher scripts; `folder` goes first in PATH and is accessible to this user only.

    role    whose programs they start
    server  folder of the prefork server; None: the same folder
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    place = (server or folder).absolute()
    for program in TASK_PROGRAMS if role == SITE else (SERVER_PROGRAM,):
        connect = _quote(sys.executable, "-I", "-S", "-c", CONNECT_SCRIPT, place, role, program)
        module = "client_program" if role == SITE else "with_token"
        alone = _quote(*_MODULE, f"unseen.deploy.flower.{module}", program)
        _write_script(folder / program, f'{connect} "$@" 3>&2 2>/dev/null || exec {alone} "$@"')
    starter = (
        _quote(flower_program(LAUNCHER_PROGRAM))
        if role == SITE
        else _quote(*_MODULE, "unseen.deploy.flower.with_token", LAUNCHER_PROGRAM)
    )
    _write_script(folder / LAUNCHER_PROGRAM, f'exec {starter} "$@"')


def _quote(*words: object) -> str:
    return shlex.join(str(word) for word in words)


def _write_script(path: Path, command: str) -> None:
    write_text(path, f"#!/bin/sh\n{command}\n")
    path.chmod(0o700)


def serve(folder: Path) -> None:
    """Fork one process per request until the parent process ends."""
    parent = os.getppid()
    _import_programs()
    children: set[int] = set()
    with socket.socket(socket.AF_UNIX) as listener:
        _bind(listener, folder)
        listener.listen(128)
        listener.settimeout(POLL_SECONDS)
        while os.getppid() == parent:
            children = {child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0}
            with suppress(TimeoutError):
                pipe, _ = listener.accept()
                with pipe:
                    child = os.fork()
                    if child == 0:
                        listener.close()
                        _become_app(pipe)
                    children.add(child)


def _bind(listener: socket.socket, folder: Path) -> None:
    """Bind a socket in the folder; change into it first, since socket paths must be short."""
    before = Path.cwd()
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    listener.bind(SOCKET)
    os.chdir(before)


def _import_programs() -> None:
    """Import all that app processes need, without computing anything: threads would not survive a fork."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()


def _become_app(pipe: socket.socket) -> None:
    """Run the program of a site or of the coordinator in this forked child, as its launcher would."""
    code = 1
    try:
        _, outputs, *_ = socket.recv_fds(pipe, 1, 2)
        for output, own in zip(outputs, (1, 2), strict=True):
            os.dup2(output, own)
            os.close(output)
        request = json.loads(pipe.makefile().readline())
        pipe.sendall(b"+")
        pipe.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = request["arguments"]
        if request["role"] == COORDINATOR:
            send_token()
            flower_entry_point(sys.argv[0])()
        else:
            run_client_program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(Path(sys.argv[1]))
