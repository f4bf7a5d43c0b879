"""Flower's real processes on loopback: one SuperLink, and a SuperNode for each site."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from unseen.deploy.processes import (
    Process,
    end,
    free_port,
    start_superlink,
    start_supernode,
    start_warm,
    wait_until_open,
)
from unseen.deploy.submit import Coordinator


class RealFederation:
    """Starts, kills and restarts the processes; leaves none behind."""

    def __init__(self, data: Path, home: Path) -> None:
        self.data, self.home = data, home
        self.port = free_port()
        self.processes: dict[str, Process] = {}
        home.mkdir(parents=True)
        self.warm = home / "warm"
        with self.log("warm").open("w", encoding="utf-8") as log:
            self.processes["warm"] = start_warm(self.warm, log=log)

    @property
    def coordinator(self) -> Coordinator:
        return Coordinator(f"127.0.0.1:{self.port}")

    def start(self, sites: Iterable[str]) -> RealFederation:
        self.start_superlink()
        for site in sites:
            self.start_site(site)
        return self

    def start_superlink(self) -> None:
        with self.log("superlink").open("a", encoding="utf-8") as log:
            self.processes["superlink"] = start_superlink(
                self.home / "superlink", port=self.port, warm=self.warm, log=log
            )
        wait_until_open(self.coordinator.address, self.processes["superlink"])

    def start_site(self, site: str) -> None:
        with self.log(site).open("a", encoding="utf-8") as log:
            self.processes[site] = start_supernode(
                self.home / site,
                site=site,
                data=str(self.data / site),
                superlink=self.coordinator.address,
                warm=self.warm,
                log=log,
            )

    def kill(self, name: str) -> None:
        end(self.processes.pop(name), kill=True)

    def log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def __enter__(self) -> RealFederation:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            end(process, kill=True)
