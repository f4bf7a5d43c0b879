"""The SuperLink's access control, request by request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from unseen.deploy.flower.access_control import AccessControl


def status_of(path: str, *, client: Any, server: str = "10.0.0.1") -> int:
    """What a client at some address gets for a path."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    peer = (client, 50000) if client else None
    scope = {"type": "http", "path": path, "client": peer, "server": (server, 9600)}
    asyncio.run(AccessControl(app)(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/docs",
        "/",
        "/v1/fleet",
    ],
)
@pytest.mark.parametrize("client", ["203.0.113.7", "10.0.0.2", "2001:db8::1", "nonsense", None])
def test_only_the_api_for_sites_is_open_to_the_network(path: str, client: str | None) -> None:
    assert status_of(path, client=client) == 403
    assert status_of("/v1/fleet/pull-messages", client=client) == 200


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "10.0.0.1"])
def test_this_machine_may_use_every_api(client: str) -> None:
    assert status_of("/v1/control/start-run", client=client) == 200
