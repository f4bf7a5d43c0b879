"""The sites that a coordinator admits: one public key each, stored in its home and registered with Flower.

A key can be added while no SuperLink runs; `unseen up` registers what is missing. Flower's own list has
node ids only, so the mapping from node id to site is kept here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unseen.deploy.flower.flwr_cli import SuperLinkConnection, run_flwr_json
from unseen.deploy.keys import fingerprint
from unseen.errors import UsageError
from unseen.fileio import write_json, write_text


@dataclass(frozen=True)
class Member:
    """A site's public key and Flower's node id ("" until it is registered)."""

    site: str
    key: str
    node: str = ""


class Members:
    """The admitted sites in a coordinator's home."""

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "sites.json"
        values = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else []
        self._members = {value["site"]: Member(**value) for value in values}

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, site: str) -> Member | None:
        """Return the member of this name, or None."""
        return self._members.get(site)

    def add(self, site: str, key: str) -> Member:
        """Add a site's key; refuse to replace another one."""
        known = self._members.get(site)
        if known is not None:
            if known.key != key:
                raise UsageError(
                    f"site {site} already has another key ({fingerprint(known.key)}); if it lost that one, "
                    f"revoke it first: unseen invite {site} --revoke"
                )
            return known
        same = [member.site for member in self if member.key == key]
        if same:
            raise UsageError(f"this key already belongs to site {same[0]}; every site creates its own")
        return self._keep(Member(site, key))

    def register(self, coordinator: SuperLinkConnection, *, all_known: bool = True) -> None:
        """Register members that the running SuperLink does not know yet.

        all_known  trust the stored node ids; else ask the SuperLink, whose database may have been lost
        """
        waiting = [member for member in self if not member.node]
        if not all_known:
            known = {node["node-id"] for node in known_nodes(coordinator, self.home)}
            waiting = [member for member in self if member.node not in known]
        for member in waiting:
            self._registered(member, coordinator)

    def _registered(self, member: Member, coordinator: SuperLinkConnection) -> None:
        key = self.home / "keys" / f"{member.site}.pub"
        write_text(key, f"{member.key}\n")
        said = run_flwr_json(
            ["supernode", "register", str(key), "--name", member.site], coordinator, home=self.home / "asking"
        )
        self._keep(Member(member.site, member.key, str(said["node-id"])))

    def revoke(self, site: str, coordinator: SuperLinkConnection | None) -> None:
        """Remove a site's key, and unregister it at a running SuperLink."""
        member = self._members.pop(site, None)
        if member is None:
            raise UsageError(f"site {site} has no key here; known: {', '.join(self._members) or 'none'}")
        if coordinator is not None and member.node:
            run_flwr_json(["supernode", "unregister", member.node], coordinator, home=self.home / "asking")
        self._save()

    def _keep(self, member: Member) -> Member:
        self._members[member.site] = member
        self._save()
        return member

    def _save(self) -> None:
        write_json(self.path, [asdict(member) for member in self])


def known_nodes(coordinator: SuperLinkConnection, home: Path) -> list[dict[str, Any]]:
    """List the nodes that the SuperLink knows."""
    said = run_flwr_json(["supernode", "list"], coordinator, home=home / "asking")
    return list(said["nodes"])
