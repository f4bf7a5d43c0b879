"""A SuperLink that serves sites over the network and everything else to this machine only.

Flower serves three APIs on one port: one for sites (authenticated by their keys), one for submitting jobs and
registering keys, and one for its own processes. The last two require no key, and a job is code that runs at
every site. So their requests are answered only if they come from this machine and show a token, which lies in
the coordinator's home for its owner only: a forwarder on this machine may hide where a request comes from.

    python -m unseen.deploy.flower.access_control ...    takes the arguments of `flower-superlink`
"""

from __future__ import annotations

import hmac
import os
import secrets
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from unseen.deploy.flower.compat import TOKEN_HEADER, TOKEN_VARIABLE
from unseen.errors import UnseenError
from unseen.fileio import write_text

SHORTEST_TOKEN = 32
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

    def __init__(self, app: App, *, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] == "lifespan" or is_allowed(scope, self.token):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            body = b"only from the coordinator's own machine, with its token"
            headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
            await send(
                {"type": "http.response.start", "status": HTTPStatus.FORBIDDEN.value, "headers": headers}
            )
            await send({"type": "http.response.body", "body": body})


def is_allowed(scope: Scope, token: str) -> bool:
    """Return whether a request is for the sites' API, or comes from this machine and shows the token."""
    if str(scope.get("path", "")).startswith(FOR_SITES):
        return True
    return _from_here(scope) and _shows(scope, token)


def _shows(scope: Scope, token: str) -> bool:
    shown = [value for name, value in scope.get("headers", ()) if name == TOKEN_HEADER.encode()]
    return len(shown) == 1 and hmac.compare_digest(shown[0], token.encode())


def gate_token(home: Path) -> str:
    """Read the token in a coordinator's home, or create it."""
    path = token_file(home)
    if not path.exists():
        write_text(path, f"{secrets.token_hex(32)}\n", private=True)
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST_TOKEN:
        raise UnseenError(f"{path} holds no token; remove it, and `unseen up` makes another")
    return token


def token_file(home: Path) -> Path:
    """Return the file of the token."""
    return home / "control.token"


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
    token = os.environ.get(TOKEN_VARIABLE, "")
    if len(token) < SHORTEST_TOKEN:
        raise UnseenError(f"the SuperLink needs a token in {TOKEN_VARIABLE}; start it with `unseen up`")
    os.environ.update(TRUSTED_PROXIES)
    run_superlink(partial(AccessControl, token=token))


def require_closed(address: str, ca: Path, token: str) -> None:
    """Send control requests as if from outside, and from here without the token: fail unless refused.

    A request through a proxy on this machine counts as coming from the address that the proxy reports.
    """
    url = f"https://{address}/v1/control/list-nodes"
    for headers in ({"X-Forwarded-For": FOREIGN, TOKEN_HEADER: token}, {}, {TOKEN_HEADER: token[::-1]}):
        request = Request(url, data=b"", headers=headers, method="POST")
        try:
            code = urlopen(request, context=ssl.create_default_context(cafile=ca), timeout=30).status
        except HTTPError as error:
            code = error.code
        except OSError as error:
            raise UnseenError(f"the SuperLink at {address} does not answer: {error}") from error
        if code != HTTPStatus.FORBIDDEN:
            raise UnseenError(
                f"the SuperLink answered {code} to a request that it must refuse; it was stopped "
                "(is flwr 1.41 installed?)"
            )


if __name__ == "__main__":
    main()
