"""App processes that start warm: Flower starts one for every message, and importing PyTorch costs seconds.

SuperNode and SuperLink start such processes as `flwr-clientapp` and `flwr-serverapp`, looked up in PATH.
There we put scripts of these names: they hand their arguments to a process that has imported everything
already and forks from itself. Every message still gets a fresh process. Where the warm process cannot be
reached, a script becomes Flower's own program, so nothing depends on this but speed.

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

from unseen.deploy.flower.compat import flower_program
from unseen.fileio import write_text

PROGRAMS = ("flwr-clientapp", "flwr-serverapp")
SOCKET = "requests"
CHECK_SECONDS = 0.5
HAND_OVER = """\
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
    """Write the scripts; `folder` is to stand first in PATH. Only this user can open it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for program in PROGRAMS:
        python, place, real = (
            shlex.quote(str(part)) for part in (sys.executable, folder.absolute(), flower_program(program))
        )
        hand_over = f'{python} -I -S -c {shlex.quote(HAND_OVER)} {place} {program} "$@" 3>&2 2>/dev/null'
        write_text(folder / program, f'#!/bin/sh\n{hand_over} || exec {real} "$@"\n')
        (folder / program).chmod(0o755)


def serve(folder: Path) -> None:
    """Fork a process for every request until the parent ends."""
    parent = os.getppid()
    programs = _programs()
    children: set[int] = set()
    with socket.socket(socket.AF_UNIX) as listener:
        _bind(listener, folder)
        listener.listen(128)
        listener.settimeout(CHECK_SECONDS)
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
    """Listen in the folder, wherever it lies: names of sockets are short, so go there for the moment."""
    before = Path.cwd()
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    listener.bind(SOCKET)
    os.chdir(before)


def _programs() -> dict[str, Callable[[], None]]:
    """Import all that the processes need. No computation: threads would not survive a fork."""
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    import unseen.deploy.apps
    import unseen.deploy.coordinator
    import unseen.deploy.ledger
    import unseen.deploy.site  # noqa: F401

    gc.freeze()
    return {"flwr-clientapp": flwr_clientapp, "flwr-serverapp": flwr_serverapp}


def _become_app(pipe: socket.socket, programs: Mapping[str, Callable[[], None]]) -> None:
    """Be one of Flower's programs, in a child of the warm process, with the caller's surroundings."""
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
