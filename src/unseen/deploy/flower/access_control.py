"""A SuperLink whose door for sites is open to the network and whose other doors are not.

Flower serves three interfaces on one port: for sites (with their keys), for those who hand in jobs and
register keys, and for its own processes. The last two ask for no key, and a job is code that runs at every
site. So requests for them are answered only if they come from this machine.

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
"""An address of nobody, kept for examples."""
TRUSTED_PROXIES = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}
"""Whose word on where a request came from is taken: that of a proxy on this machine, nobody else's."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AccessControl:
    """Stands before a web application and turns away what is not for those who ask."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer 403."""
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
    """Whether a request is for sites, or comes from this machine."""
    return str(scope.get("path", "")).startswith(FOR_SITES) or _from_here(scope)


def _from_here(scope: Scope) -> bool:
    """Whether the other end has a loopback address, or the very address it speaks to."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server:
        return False
    try:
        there = ip_address(client[0])
        return there.is_loopback or there == ip_address(server[0])
    except ValueError:
        return False


def main() -> None:
    """Run Flower's SuperLink behind the gate. Whether it stands there is tried out by `unseen up`."""
    from unseen.deploy.flower.compat import require_flower

    require_flower()
    os.environ.update(TRUSTED_PROXIES)
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink

    create_app = superlink.create_app

    def guarded(*arguments: Any, **options: Any) -> Any:
        app = create_app(*arguments, **options)
        app.add_middleware(AccessControl)
        return app

    superlink.create_app = guarded
    flower_superlink()


def require_closed(address: str, ca: Path) -> None:
    """Ask like someone from outside, and do not go on if that is answered.

    A request that came through a proxy on this machine counts as coming from where the proxy says.
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
