"""Where tracked values go: this machine, or another one that the user named and that may be reached."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from unseen.data.download import OFFLINE_VARIABLE, is_offline
from unseen.errors import UsageError


def is_remote(address: str) -> bool:
    """Whether an address names another machine; a path, a file: or sqlite: address does not."""
    parts = urlsplit(address)
    if parts.scheme in ("", "file", "sqlite") or len(parts.scheme) == 1:
        return parts.scheme == "" and address.partition(":")[0] in _HOSTED
    host = (parts.hostname or "").rstrip(".")
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return host != "localhost" and not host.endswith(".localhost")


_HOSTED = ("databricks", "databricks-uc", "uc")
"""Names of services that MLflow takes in place of an address."""


def without_secrets(address: str) -> str:
    """Remove user, password and query from an address, so that it can be shown and written down."""
    parts = urlsplit(address)
    if not parts.netloc:
        return address
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def require_reachable(tracker: str, address: str, *, instead: str) -> None:
    """Refuse another machine where `UNSEEN_OFFLINE` forbids to reach any.

    instead  what to do to track on this machine
    """
    if is_offline() and is_remote(address):
        raise UsageError(
            f"{OFFLINE_VARIABLE} is set, which forbids to track with {tracker} at "
            f"{without_secrets(address)}: {instead}, or unset {OFFLINE_VARIABLE}"
        )
