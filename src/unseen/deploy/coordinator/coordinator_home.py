"""The coordinator's home folder: address, certificates, admitted sites; its SuperLink and status."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import IO, Any

from unseen.deploy.flower.access_control import gate_token, require_closed
from unseen.deploy.flower.flwr_cli import SuperLinkConnection, run_flwr_json
from unseen.deploy.flower.processes import (
    LOOPBACK,
    Certificates,
    start_superlink,
    stop_process,
    wait_until_open,
)
from unseen.deploy.identity.members import Member, Members, known_nodes
from unseen.deploy.identity.tls import make_certificates
from unseen.errors import UnseenError, UsageError
from unseen.fileio import write_json

EVERYWHERE = "0.0.0.0"
DEFAULT_PORT = 9600
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class CoordinatorHome:
    """Settings stored in a coordinator's home folder.

    hosts  names or addresses at which sites reach it; invitations contain the first one
    """

    path: Path
    hosts: tuple[str, ...]
    port: int

    @classmethod
    def load(cls, path: Path) -> CoordinatorHome:
        """Read a home that `unseen up` created."""
        file = settings_file(path)
        if not file.exists():
            raise UsageError(
                f"{path} is not a coordinator's home; create one: unseen up --home {path} --host NAME"
            )
        values = json.loads(file.read_text(encoding="utf-8"))
        return cls(path, tuple(values["hosts"]), int(values["port"]))

    @property
    def address(self) -> str:
        """Address at which sites reach the coordinator, host:port."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def here(self) -> SuperLinkConnection:
        """Connection for commands on this machine."""
        names = {member.node: member.site for member in Members(self.path) if member.node}
        return SuperLinkConnection(f"{LOOPBACK}:{self.port}", self.path / "tls" / "ca.crt", names, self.path)

    @property
    def listens_on(self) -> str:
        """Interface to listen on: loopback if all host names refer to this machine, else all interfaces."""
        return LOOPBACK if all(_is_loopback(host) for host in self.hosts) else EVERYWHERE

    @property
    def log(self) -> Path:
        """Log file of the SuperLink."""
        return self.path / "superlink.log"

    def certificates(self) -> Certificates:
        """Load the certificates, or create them."""
        return make_certificates(self.path / "tls", self.hosts)


def settings_file(path: Path) -> Path:
    """Return the file with the home's settings."""
    return path / "coordinator.json"


def runs_file(path: Path) -> Path:
    """Return the file that names the runs started on a home, one JSON line each."""
    return path / "runs.jsonl"


def note_run(path: Path, out: Path) -> None:
    """Note where a run writes its records, for those who look at the federation as a whole."""
    file = runs_file(path)
    try:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"event": "run", "out": str(out.absolute())}) + "\n")
    except OSError as error:
        raise UnseenError(f"could not write {file}: {error.strerror or error}") from error


def open_home(
    path: Path,
    *,
    hosts: Sequence[str] = (),
    port: int | None = None,
    renew: bool = False,
    ca_key: Path | None = None,
) -> CoordinatorHome:
    """Create a home, or open an existing one; options that are not given keep their values.

    renew, ca_key  as in `make_certificates`
    """
    known = CoordinatorHome.load(path) if settings_file(path).exists() else None
    home = CoordinatorHome(
        path,
        hosts=tuple(hosts) or (known.hosts if known else (LOOPBACK,)),
        port=port or (known.port if known else DEFAULT_PORT),
    )
    for host in home.hosts:
        if not HOST_NAME.fullmatch(host) and not _is_address(host):
            raise UsageError(f"--host {host!r} is neither a host name nor an address")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_certificates(path / "tls", home.hosts, renew=renew, ca_key=ca_key)
    values = asdict(home)
    del values["path"]
    write_json(settings_file(path), values)
    return home


def start_coordinator(home: CoordinatorHome, *, log: IO[str]) -> subprocess.Popen[str]:
    """Start the SuperLink with TLS and keys, and check that only its API for sites can be reached."""
    _require_free(home.port)
    process = start_superlink(
        home.path,
        host=home.listens_on,
        port=home.port,
        certificates=home.certificates(),
        node_keys=True,
        log=log,
    )
    try:
        wait_until_open(home.here.address, process)
        require_closed(home.here.address, home.path / "tls" / "ca.crt", gate_token(home.path))
    except BaseException:
        stop_process(process)
        raise
    return process


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise UnseenError(
                f"port {port} cannot be used ({error.strerror}): is a coordinator already running there? "
                "Choose another with --port"
            ) from error


def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback if _is_address(host) else host == "localhost"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Row:
    """A site or a run, its status, and the time of its last change."""

    name: str
    status: str
    since: str


@dataclass(frozen=True)
class FederationStatus:
    """Content of `unseen status`."""

    sites: tuple[Row, ...]
    runs: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)


def federation_status(path: Path) -> FederationStatus:
    """Query the coordinator that runs in this home."""
    home, members = CoordinatorHome.load(path), Members(path)
    nodes = {node["node-id"]: node for node in known_nodes(home.here, path)}
    sites = tuple(_site(member, nodes.get(member.node)) for member in members)
    runs = run_flwr_json(["list"], home.here, home=path / "asking")["runs"]
    return FederationStatus(sites, tuple(_run(run) for run in runs))


def _site(member: Member, node: dict[str, Any] | None) -> Row:
    name = member.site
    if member.expired:
        return Row(name, "key expired", member.expires)
    if node is None:
        return Row(name, "not registered", "")
    since = {"online": node["online-at"], "offline": node["offline-at"]}.get(
        node["status"], node["created-at"]
    )
    return Row(name, node["status"], since)


def _run(run: dict[str, Any]) -> Row:
    reached = [run[f"{state}-at"] for state in ("finished", "running", "starting", "pending")]
    since = next((time for time in reached if time and time != "N/A"), "")
    return Row(run["run-id"], run["status"], since)
