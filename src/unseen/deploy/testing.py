"""A whole federation on this machine, with real Flower processes, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from unseen.deploy.coordinator.coordinator_home import CoordinatorHome, open_home
from unseen.deploy.flower.flwr_cli import SuperLinkConnection
from unseen.deploy.flower.processes import (
    LOOPBACK,
    Process,
    free_port,
    start_prefork,
    start_superlink,
    start_supernode,
    stop_process,
    wait_until_open,
)
from unseen.deploy.identity.keys import site_key
from unseen.deploy.identity.members import Members
from unseen.deploy.site.site_policy import POLICY
from unseen.fileio import write_text


class LocalFederation:
    """Starts, kills and restarts one SuperLink and one SuperNode per site; leaves no process behind.

    data    a folder with one image folder per site, or with one table per site
    suffix  of the sites' tables, such as ".csv"
    secure  with TLS and registered keys, as with `unseen up` and `unseen join`; else plain HTTP
    policy  text of every site's `policy.toml`; by default the usual one, but for groups of any size
    """

    def __init__(
        self,
        data: Path,
        home: Path,
        *,
        secure: bool = True,
        policy: str = "min_group = 1\n",
        suffix: str = "",
    ) -> None:
        self.suffix = suffix
        self.data, self.home, self.port, self.policy = data, home, free_port(), policy
        home.mkdir(parents=True)
        self._coordinator: CoordinatorHome | None = None
        if secure:
            self._coordinator = open_home(home / "superlink", hosts=[LOOPBACK], port=self.port)
        self.warm = home / "warm"
        self.processes: dict[str, Process] = {}
        with self.log("warm").open("w", encoding="utf-8") as log:
            self.processes["warm"] = start_prefork(self.warm, log=log)

    @property
    def coordinator(self) -> SuperLinkConnection:
        """Connection for submitting jobs."""
        if self._coordinator is not None:
            return self._coordinator.here
        return SuperLinkConnection(f"{LOOPBACK}:{self.port}", home=self.home / "superlink")

    def start(self, sites: Iterable[str]) -> LocalFederation:
        """Start everything."""
        names = list(sites)
        self.start_superlink()
        if self._coordinator is not None:
            members = Members(self._coordinator.path)
            for site in names:
                members.add(site, site_key(self.home / site, site).line)
            members.register(self._coordinator.here)
        for site in names:
            self.start_site(site)
        return self

    def start_superlink(self) -> None:
        """Start the SuperLink, or restart it with its former state."""
        coordinator = self._coordinator
        with self.log("superlink").open("a", encoding="utf-8") as log:
            self.processes["superlink"] = start_superlink(
                self.home / "superlink",
                port=self.port,
                certificates=coordinator.certificates() if coordinator else None,
                node_keys=coordinator is not None,
                warm=self.warm,
                log=log,
            )
        wait_until_open(self.coordinator.address, self.processes["superlink"])

    def start_site(self, site: str, *, superlink: str = "") -> None:
        """Start a site's SuperNode; `superlink` is an address to use in place of the coordinator's."""
        secure = self._coordinator is not None
        write_text(self.home / site / POLICY, self.policy)
        with self.log(site).open("a", encoding="utf-8") as log:
            self.processes[site] = start_supernode(
                self.home / site,
                site=site,
                data=str(self.data / f"{site}{self.suffix}"),
                superlink=superlink or self.coordinator.address,
                ca=self.coordinator.ca,
                key=site_key(self.home / site, site).private if secure else None,
                warm=self.warm,
                log=log,
            )

    def kill(self, name: str) -> None:
        """Kill a process as if its machine had lost power."""
        stop_process(self.processes.pop(name), kill=True)

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.home / f"{name}.log"

    def __enter__(self) -> LocalFederation:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            stop_process(process, kill=True)
