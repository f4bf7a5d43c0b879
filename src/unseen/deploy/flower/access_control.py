"""A SuperLink that serves sites over the network and everything else to this machine only.

Flower serves three APIs on one port: one for sites (authenticated by their keys), one for submitting jobs and
registering keys, and one for its own processes. The last two require no key, and a job is code that runs at
every site. So their requests are answered only if they come from this machine.

    python -m unseen.deploy.flower.access_control ...    takes the arguments of `flower-superlink`
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from unseen.errors import UnseenError

FOR_SITES = ("/v1/fleet/",)
FOREIGN = "203.0.113.1"
"""A documentation address (RFC 5737), which belongs to nobody."""
TRUSTED_PROXIES = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}
"""Trust `X-Forwarded-For` from a proxy on this machine only."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AccessControl:
    """ASGI middleware that refuses requests which the caller may not make."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] == "lifespan" or is_allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = b"only from the coordinator's own machine"
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
            await send(
                {"type": "http.response.start", "status": HTTPStatus.FORBIDDEN.value, "headers": headers}
            )
            await send({"type": "http.response.body", "body": body})


def is_allowed(scope: Scope) -> bool:
    """Return whether a request is for the sites' API or comes from this machine."""
    return str(scope.get("path", "")).startswith(FOR_SITES) or _from_here(scope)


def _from_here(scope: Scope) -> bool:
    """Return whether the caller has a loopback address, or the same address as the server."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server:
        return False
    try:
        there = ip_address(client[0])
        return there.is_loopback or there == ip_address(server[0])
    except ValueError:
        return False


def main() -> None:
    """Run Flower's SuperLink behind the access control; `unseen up` then checks that it is really closed."""
    from unseen.deploy.flower.compat import require_flower, run_superlink

    require_flower()
    os.environ.update(TRUSTED_PROXIES)
    run_superlink(AccessControl)


def require_closed(address: str, ca: Path) -> None:
    """Send a control request as if from outside, and fail unless it is refused.

    A request through a proxy on this machine counts as coming from the address that the proxy reports.
    """
    url = f"https://{address}/v1/control/list-nodes"
    request = Request(url, data=b"", headers={"X-Forwarded-For": FOREIGN}, method="POST")
    try:
        code = urlopen(request, context=ssl.create_default_context(cafile=ca), timeout=30).status
    except HTTPError as error:
        code = error.code
    except OSError as error:
        raise UnseenError(f"the SuperLink at {address} does not answer: {error}") from error
    if code != HTTPStatus.FORBIDDEN:
        raise UnseenError(
            f"the SuperLink answered {code} to a request from outside that it must refuse; it was stopped "
            "(is flwr 1.41 installed?)"
        )


if __name__ == "__main__":
    main()
