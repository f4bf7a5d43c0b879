"""Starting and stopping Flower's long-running processes: SuperLink, SuperNode and prefork server."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unseen.deploy.flower.access_control import gate_token
from unseen.deploy.flower.compat import (
    TOKEN_VARIABLE,
    flower_environment,
    path_without_flower,
    require_flower,
)
from unseen.deploy.flower.prefork import COORDINATOR, SITE, write_launchers
from unseen.errors import UnseenError

LOOPBACK = "127.0.0.1"
STOP_SECONDS = 10.0
Process = subprocess.Popen[str]
WITH_PREFORK = (
    'python="$1" folder="$2"; shift 2; "$python" -m unseen.deploy.flower.prefork "$folder" & exec "$@"'
)
"""Shell script: start the prefork server as a child, then exec the program."""


@dataclass(frozen=True)
class Certificates:
    """PEM files of a server: certificate, private key and CA certificate."""

    certificate: Path
    key: Path
    ca: Path

    def arguments(self) -> list[str]:
        """Return the command-line options of Flower's programs."""
        return [
            *("--ssl-certfile", str(self.certificate)),
            *("--ssl-keyfile", str(self.key)),
            *("--ssl-ca-certfile", str(self.ca)),
        ]


def start_superlink(
    home: Path,
    *,
    host: str = LOOPBACK,
    port: int,
    certificates: Certificates | None = None,
    node_keys: bool = False,
    warm: Path | None = None,
    log: IO[str] | None = None,
) -> Process:
    """Start the coordinator's SuperLink in a new process group; its database is in `home`.

    certificates  None: plain HTTP, for tests on one machine only
    node_keys     admit only sites whose public keys were registered
    warm          folder of a running prefork server; None: start one with the SuperLink
    log           file for its output; None: this process's output
    """
    arguments = [
        *(sys.executable, "-m", "unseen.deploy.flower.access_control", "--host", host, "--port", str(port)),
        *("--database", str(home / "state.db"), "--disable-runtime-dependency-installation"),
        *(certificates.arguments() if certificates else ["--insecure"]),
        *(["--enable-supernode-auth"] if node_keys else []),
    ]
    folder = (warm or home / "warm").absolute()
    write_launchers(folder, role=COORDINATOR)
    environment = flower_environment(home / "flwr", **{TOKEN_VARIABLE: gate_token(home)})
    environment["PATH"] = os.pathsep.join([str(folder), environment["PATH"]])
    return _start_beside_warm(arguments, environment, home, folder, log, starts=warm is None)


def start_supernode(
    home: Path,
    *,
    site: str,
    data: str,
    superlink: str,
    ca: Path | None = None,
    key: Path | None = None,
    port: int | None = None,
    certificates: Certificates | None = None,
    warm: Path | None = None,
    log: IO[str] | None = None,
) -> Process:
    """Start a site's SuperNode in a new process group; its client state is in `home`.

    data          the site's folder CLASS/IMAGE (or a named data set, or a table)
    superlink     address of the coordinator, host:port
    ca            CA of the coordinator's certificate; None: plain HTTP
    key           the site's private key
    port          of the SuperNode's own interface for its client processes, on loopback; None: a free one
    certificates  for that interface; None: plain HTTP on loopback
    warm          folder of a running prefork server; None: start one with the SuperNode
    log           file for its output; None: this process's output
    """
    node = {"site": site, "data": data, "home": str(home.absolute())}
    arguments = [
        *(sys.executable, "-P", "-m", "unseen.deploy.flower.supernode_program", "--superlink", superlink),
        *(["--root-certificates", str(ca)] if ca else ["--insecure"]),
        *("--host", LOOPBACK, "--port", str(port or free_port())),
        *(certificates.arguments() if certificates else []),
        *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in node.items())),
        *(["--auth-supernode-private-key", str(key)] if key else []),
    ]
    folder, programs = (warm or home / "warm").absolute(), (home / "programs").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_launchers(programs, role=SITE, server=folder)
    environment = flower_environment(home / "flwr")
    environment["PATH"] = os.pathsep.join([str(programs), path_without_flower(environment["PATH"])])
    return _start_beside_warm(arguments, environment, home, folder, log, starts=warm is None)


def start_prefork(folder: Path, *, log: IO[str] | None = None) -> Process:
    """Start a prefork server that several sites on one machine can share."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _start([sys.executable, "-m", "unseen.deploy.flower.prefork", str(folder)], dict(os.environ), log)


def _start_beside_warm(
    arguments: list[str],
    environment: dict[str, str],
    home: Path,
    folder: Path,
    log: IO[str] | None,
    *,
    starts: bool,
) -> Process:
    """Start a program and, if `starts`, a prefork server in `folder` with it."""
    require_flower()
    home.mkdir(parents=True, exist_ok=True)
    if not starts:
        return _start(arguments, environment, log)
    return _start(["sh", "-c", WITH_PREFORK, "sh", sys.executable, str(folder), *arguments], environment, log)


def _start(arguments: list[str], environment: dict[str, str], log: IO[str] | None) -> Process:
    return subprocess.Popen(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT if log else None,
        text=True,
        start_new_session=True,
    )


def stop_process(process: Process, *, kill: bool = False) -> None:
    """Stop a process and its group: with SIGTERM first, or with SIGKILL at once.

    Flower's own helpers outside the group check for their parent five times per second and exit with it.
    """
    if not kill and process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def free_port() -> int:
    """Find a free TCP port on loopback, outside the range of ephemeral ports."""
    for _ in range(100):
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
    raise UnseenError(f"no free port between 20000 and 32000 was found on {LOOPBACK}")


def wait_until_open(address: str, process: Process, *, seconds: float = 120.0) -> None:
    """Wait until a process accepts connections; raise if it ends instead."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise UnseenError(
                f"the SuperLink for {address} ended with code {process.returncode}; see its log"
            )
        try:
            socket.create_connection((host, int(port)), timeout=1.0).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise UnseenError(f"the SuperLink did not listen on {address} within {seconds:g} s")
