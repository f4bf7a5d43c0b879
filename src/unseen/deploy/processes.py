"""Starting Flower's long-running processes: a SuperLink for the coordinator, a SuperNode for a site."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from unseen.deploy.warm import fill_folder
from unseen.engine.flower.environment import flower_environment, flower_program, require_flower
from unseen.errors import UnseenError

STOP_SECONDS = 10.0


@dataclass(frozen=True)
class Certificates:
    """PEM files of a server: its certificate, its key, and the authority that vouches for it."""

    certificate: Path
    key: Path
    ca: Path

    def arguments(self) -> list[str]:
        """How Flower's programs take them."""
        return [
            *("--ssl-certfile", str(self.certificate)),
            *("--ssl-keyfile", str(self.key)),
            *("--ssl-ca-certfile", str(self.ca)),
        ]


def start_superlink(
    home: Path,
    *,
    host: str = "127.0.0.1",
    port: int,
    certificates: Certificates | None = None,
    node_keys: bool = False,
    log: IO[str] | None = None,
) -> subprocess.Popen[str]:
    """Start the coordinator's SuperLink in a process group of its own; its database lies in `home`.

    certificates  None: plain HTTP, for tests on one machine only
    node_keys     let in only sites whose public keys were registered
    log           where its output goes; None: to this process's own
    """
    require_flower()
    home.mkdir(parents=True, exist_ok=True)
    arguments = [
        *(flower_program("flower-superlink"), "--host", host, "--port", str(port)),
        *("--database", str(home / "state.db"), "--disable-runtime-dependency-installation"),
        *(certificates.arguments() if certificates else ["--insecure"]),
        *(["--enable-supernode-auth"] if node_keys else []),
    ]
    return _start(arguments, flower_environment(home / "flwr"), log)


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
    warm: bool = True,
    log: IO[str] | None = None,
) -> subprocess.Popen[str]:
    """Start a site's SuperNode in a process group of its own; what its clients remember lies in `home`.

    data          the site's folder CLASS/IMAGE (or a named data set, or a table)
    superlink     address of the coordinator, host:port
    ca            authority of the coordinator's certificate; None: plain HTTP
    key           the site's private key
    port          of the SuperNode's own interface for its client processes, on loopback; None: a free one
    certificates  for that interface; None: plain HTTP on loopback
    warm          keep a process ready from which client processes start without importing everything anew
    """
    require_flower()
    home.mkdir(parents=True, exist_ok=True)
    node = {"site": site, "data": data, "home": str(home.absolute())}
    arguments = [
        *(flower_program("flower-supernode"), "--superlink", superlink),
        *(["--root-certificates", str(ca)] if ca else ["--insecure"]),
        *("--host", "127.0.0.1", "--port", str(port or free_port())),
        *(certificates.arguments() if certificates else []),
        *("--node-config", " ".join(f"{name}={json.dumps(value)}" for name, value in node.items())),
        *(["--auth-supernode-private-key", str(key)] if key else []),
    ]
    if not warm:
        return _start(arguments, flower_environment(home / "flwr"), log)
    folder = (home / "warm").absolute()
    fill_folder(folder)
    environment = flower_environment(home / "flwr")
    environment["PATH"] = os.pathsep.join([str(folder), environment["PATH"]])
    both = 'python="$1" folder="$2"; shift 2; "$python" -m unseen.deploy.warm "$folder" & exec "$@"'
    return _start(["sh", "-c", both, "sh", sys.executable, str(folder), *arguments], environment, log)


def _start(arguments: list[str], environment: dict[str, str], log: IO[str] | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT if log else None,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], *, kill: bool = False) -> None:
    """End a process and all that it started: gently first, or with SIGKILL at once."""
    if not kill and process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[str], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """Find a free TCP port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_open(address: str, process: subprocess.Popen[str], *, seconds: float = 60.0) -> None:
    """Wait until a process listens; say so if it ends instead."""
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
