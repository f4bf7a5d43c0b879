"""Status of a federation: connected sites and past runs, from Flower's lists with our site names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unseen.deploy.coordinator_home import CoordinatorHome
from unseen.deploy.flower.flwr_cli import run_flwr_json
from unseen.deploy.members import Members, known_nodes


@dataclass(frozen=True)
class Row:
    """A site or a run, its status, and since when it has it."""

    name: str
    status: str
    since: str


@dataclass(frozen=True)
class FederationStatus:
    """What `unseen status` shows."""

    sites: tuple[Row, ...]
    runs: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)


def federation_status(path: Path) -> FederationStatus:
    """Query the coordinator that runs in this home."""
    home, members = CoordinatorHome.load(path), Members(path)
    nodes = {node["node-id"]: node for node in known_nodes(home.here, path)}
    sites = tuple(_site(member.site, nodes.get(member.node)) for member in members)
    runs = run_flwr_json(["list"], home.here, home=path / "asking")["runs"]
    return FederationStatus(sites, tuple(_run(run) for run in runs))


def _site(name: str, node: dict[str, Any] | None) -> Row:
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
