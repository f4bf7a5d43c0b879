"""Client processes that start warm: Flower starts one for every message, and importing PyTorch costs seconds.

A SuperNode starts client processes as `flwr-clientapp`, looked up in PATH. There we put a script of that
name: it hands its arguments to a process that has imported everything already and forks a client process
from itself. Every message still gets a fresh process. Where the warm process cannot be reached, the script
becomes Flower's own program, so nothing depends on this but speed.

    python -m unseen.deploy.warm FOLDER    serves forks until its parent, the SuperNode, ends
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from unseen.engine.flower.environment import flower_program
from unseen.files import write_text

PROGRAM = "flwr-clientapp"
SOCKET = "requests"
CHECK_SECONDS = 0.5
HAND_OVER = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as pipe:
    os.chdir(sys.argv[1])
    pipe.connect("requests")
    pipe.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
    sys.exit(pipe.recv(1) != b"+")
"""


def fill_folder(folder: Path) -> None:
    """Write the script; `folder` is to stand first in a SuperNode's PATH. Only this user can open it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    python, place, real = (
        shlex.quote(str(part)) for part in (sys.executable, folder.absolute(), flower_program(PROGRAM))
    )
    script = folder / PROGRAM
    hand_over = f'{python} -I -S -c {shlex.quote(HAND_OVER)} {place} "$@" 2>/dev/null'
    write_text(script, f'#!/bin/sh\n{hand_over} || exec {real} "$@"\n')
    script.chmod(0o755)


def serve(folder: Path) -> None:
    """Fork a client process for every request until the parent ends."""
    parent = os.getppid()
    _preload()
    children: set[int] = set()
    with socket.socket(socket.AF_UNIX) as listener:
        _bind(listener, folder)
        listener.listen()
        listener.settimeout(CHECK_SECONDS)
        while os.getppid() == parent:
            children = {child for child in children if not _ended(child)}
            with suppress(TimeoutError):
                pipe, _ = listener.accept()
                with pipe:
                    arguments = json.loads(pipe.makefile().readline() or "[]")
                    child = os.fork()
                    if child == 0:
                        listener.close()
                        _become_client(arguments, pipe)
                    children.add(child)


def _bind(listener: socket.socket, folder: Path) -> None:
    """Listen in the folder, wherever it lies: names of sockets are short, so go there for the moment."""
    before = Path.cwd()
    os.chdir(folder)
    Path(SOCKET).unlink(missing_ok=True)
    listener.bind(SOCKET)
    os.chdir(before)


def _preload() -> None:
    """Import all that a client process needs. No computation: threads would not survive a fork."""

    import unseen.deploy.apps
    import unseen.deploy.site  # noqa: F401

    gc.freeze()


def _become_client(arguments: list[str], pipe: socket.socket) -> None:
    """Be Flower's client process, in a child of the warm one."""
    from flwr.supernode.cli import flwr_clientapp

    code = 1
    try:
        pipe.sendall(b"+")
        pipe.close()
        sys.argv = [PROGRAM, *arguments]
        flwr_clientapp()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] != 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    serve(Path(sys.argv[1]))
