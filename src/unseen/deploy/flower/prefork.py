"""Pre-forked app processes: Flower starts one per message, and importing PyTorch takes seconds.

SuperNode and SuperLink start such processes as `flwr-clientapp` and `flwr-serverapp`, looked up in PATH.
Launcher scripts of these names, placed first in PATH, pass their arguments to a server process that has
imported everything already and forks per request. Every message still gets a fresh process. If the server
cannot be reached, a launcher runs Flower's own program, so that only speed depends on this.

    python -m unseen.deploy.flower.prefork FOLDER    serves forks until the process that started it ends
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from unseen.deploy.flower.compat import APP_PROGRAMS, app_entry_points, flower_program
from unseen.fileio import write_text

SOCKET = "requests"
POLL_SECONDS = 0.5
CONNECT_SCRIPT = """\
import json, os, socket, sys
place, *arguments = sys.argv[1:]
request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
with socket.socket(socket.AF_UNIX) as pipe:
    os.chdir(place)
    pipe.connect("requests")
    socket.send_fds(pipe, [b"+"], [1, 3])
    pipe.sendall(json.dumps(request).encode() + b"\\n")
    sys.exit(pipe.recv(1) != b"+")
"""


def write_launchers(folder: Path) -> None:
    """Write the launcher scripts; `folder` goes first in PATH and is accessible to this user only."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for program in APP_PROGRAMS:
        python, place, real = (
            shlex.quote(str(part)) for part in (sys.executable, folder.absolute(), flower_program(program))
        )
        connect = f'{python} -I -S -c {shlex.quote(CONNECT_SCRIPT)} {place} {program} "$@" 3>&2 2>/dev/null'
        write_text(folder / program, f'#!/bin/sh\n{connect} || exec {real} "$@"\n')
        (folder / program).chmod(0o755)


def serve(folder: Path) -> None:
    """Fork one process per request until the parent process ends."""
    parent = os.getppid()
    programs = _import_programs()
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
                        _become_app(pipe, programs)
                    children.add(child)


def _bind(listener: socket.socket, folder: Path) -> None:
    """Bind a socket in the folder; change into it first, since socket paths must be short."""
    before = Path.cwd()
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    listener.bind(SOCKET)
    os.chdir(before)


def _import_programs() -> dict[str, Callable[[], None]]:
    """Import all that app processes need, without computing anything: threads would not survive a fork."""
    import unseen.deploy.apps
    import unseen.deploy.coordinator
    import unseen.deploy.ledger
    import unseen.deploy.site  # noqa: F401

    programs = app_entry_points()
    gc.freeze()
    return programs


def _become_app(pipe: socket.socket, programs: Mapping[str, Callable[[], None]]) -> None:
    """Run one of Flower's programs in this forked child, with the launcher's environment and output."""
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
        programs[sys.argv[0]]()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(Path(sys.argv[1]))
