"""The sites that a coordinator admits: one public key each, stored in its home and registered with Flower.

A key can be added while no SuperLink runs; `unseen up` registers what is missing. A key is accepted for a
limited time. Flower never takes a key again that was unregistered: after a revocation, or once its time is
over, a site needs a new one. Flower's own list has node ids only, so the mapping from node id to site is kept
here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from filelock import FileLock

from unseen.deploy.flower.flwr_cli import SuperLinkConnection, run_flwr_json
from unseen.deploy.identity.keys import fingerprint
from unseen.errors import UsageError
from unseen.fileio import write_json, write_text

KEY_DAYS = 365.0


@dataclass(frozen=True)
class Member:
    """A site's public key and Flower's node id ("" until it is registered).

    expires  until when the key is accepted; empty: without limit, as older versions accepted them
    """

    site: str
    key: str
    node: str = ""
    expires: str = ""

    @property
    def expired(self) -> bool:
        """Whether the key's time is over."""
        return bool(self.expires) and datetime.fromisoformat(self.expires) < datetime.now(UTC)

    @property
    def days_left(self) -> float:
        """Days until the key expires; infinite without a limit."""
        if not self.expires:
            return float("inf")
        return (datetime.fromisoformat(self.expires) - datetime.now(UTC)) / timedelta(days=1)


class Members:
    """The admitted sites in a coordinator's home."""

    def __init__(self, home: Path) -> None:
        self.home, self.path = home, home / "sites.json"
        self._members: dict[str, Member] = {}
        self._load()

    def _load(self) -> None:
        values = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else []
        self._members = {value["site"]: Member(**value) for value in values}

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the file against other processes, and read what they wrote before."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(self.home / "sites.lock"):
            self._load()
            yield

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, site: str) -> Member | None:
        """Return the member of this name, or None."""
        return self._members.get(site)

    @property
    def revoked(self) -> list[str]:
        """Public keys that were admitted once and are not accepted any more."""
        path = self.home / "revoked.json"
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []

    def add(self, site: str, key: str, *, days: float = KEY_DAYS) -> Member:
        """Add a site's key for some days, or extend that time; refuse to replace another one."""
        with self._changing():
            known = self._members.get(site)
            self._require_new(site, key)
            if known is None:
                return self._keep(Member(site, key, expires=_in_days(days)))
            if known.key != key:
                raise UsageError(
                    f"site {site} already has another key ({fingerprint(known.key)}); if it changed its key, "
                    f"accept the file {site}.rotation, and if it lost it, first: unseen revoke {site}"
                )
            if known.expired:
                raise UsageError(
                    f"the key of {site} expired on {known.expires[:10]} and cannot be used again; there: "
                    f"unseen join --rotate-key, then accept {site}.rotation here"
                )
            return self._keep(replace(known, expires=_in_days(days)))

    def rotate(
        self, site: str, key: str, coordinator: SuperLinkConnection | None, *, days: float = KEY_DAYS
    ) -> Member:
        """Replace a site's key, after its rotation was verified; the former one is unregistered for good."""
        with self._changing():
            self._require_new(site, key)
            self._end(self._members[site], coordinator)
            return self._keep(Member(site, key, expires=_in_days(days)))

    def _require_new(self, site: str, key: str) -> None:
        if key in self.revoked:
            raise UsageError(
                f"this key was revoked and cannot be used again; {site} makes a new one: move its "
                f"{site}.key and {site}.pub away and run `unseen join`"
            )
        same = [member.site for member in self if member.key == key and member.site != site]
        if same:
            raise UsageError(f"this key already belongs to site {same[0]}; every site creates its own")

    def register(self, coordinator: SuperLinkConnection, *, all_known: bool = True) -> None:
        """Register members that the running SuperLink does not know yet, but for expired keys.

        all_known  trust the stored node ids; else ask the SuperLink, whose database may have been lost
        """
        waiting = [member for member in self if not member.node]
        if not all_known:
            known = {node["node-id"] for node in known_nodes(coordinator, self.home)}
            waiting = [member for member in self if member.node not in known]
        for member in waiting:
            if not member.expired:
                self._register(member, coordinator)

    def _register(self, member: Member, coordinator: SuperLinkConnection) -> None:
        key = self.home / "keys" / f"{member.site}.pub"
        write_text(key, f"{member.key}\n")
        said = run_flwr_json(
            ["supernode", "register", str(key), "--name", member.site], coordinator, home=self.home / "asking"
        )
        with self._changing():
            self._keep(replace(member, node=str(said["node-id"])))

    def drop_expired(self, coordinator: SuperLinkConnection) -> list[str]:
        """Unregister sites whose keys have expired; return their names."""
        if not any(member.expired and member.node for member in self):
            return []
        with self._changing():
            late = [member for member in self if member.expired and member.node]
            for member in late:
                self._end(member, coordinator)
                self._keep(replace(member, node=""))
        return [member.site for member in late]

    def revoke(self, site: str, coordinator: SuperLinkConnection | None) -> None:
        """Remove a site's key, and unregister it at a running SuperLink."""
        with self._changing():
            member = self._members.pop(site, None)
            if member is None:
                raise UsageError(f"site {site} has no key here; known: {', '.join(self._members) or 'none'}")
            self._end(member, coordinator)
            self._save()

    def _end(self, member: Member, coordinator: SuperLinkConnection | None) -> None:
        """Remember that a key is not accepted any more, and tell a running SuperLink."""
        if member.key not in self.revoked:
            write_json(self.home / "revoked.json", [*self.revoked, member.key])
        if coordinator is not None and member.node:
            run_flwr_json(["supernode", "unregister", member.node], coordinator, home=self.home / "asking")

    def unregister_revoked(self, coordinator: SuperLinkConnection) -> None:
        """Unregister nodes that are no site's any more, as after a revocation while no SuperLink ran."""
        own = {member.node for member in self if member.node}
        for node in known_nodes(coordinator, self.home):
            if node["node-id"] not in own and node["status"] != "unregistered":
                run_flwr_json(
                    ["supernode", "unregister", node["node-id"]], coordinator, home=self.home / "asking"
                )

    def _keep(self, member: Member) -> Member:
        self._members[member.site] = member
        self._save()
        return member

    def _save(self) -> None:
        write_json(self.path, [asdict(member) for member in self])


def _in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")


def known_nodes(coordinator: SuperLinkConnection, home: Path) -> list[dict[str, Any]]:
    """List the nodes that the SuperLink knows."""
    said = run_flwr_json(["supernode", "list"], coordinator, home=home / "asking")
    return list(said["nodes"])
