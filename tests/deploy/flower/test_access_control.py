"""The SuperLink's access control, request by request."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path
from typing import Any

import pytest

from unseen.deploy.flower.access_control import AccessControl, gate_token, token_file
from unseen.errors import UnseenError

TOKEN = "0123456789abcdef" * 4


def status_of(path: str, *, client: Any, server: str = "10.0.0.1", tokens: tuple[str, ...] = (TOKEN,)) -> int:
    """What a client at some address gets for a path, with these tokens in its headers."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    peer = (client, 50000) if client else None
    scope = {"type": "http", "path": path, "client": peer, "server": (server, 9600)}
    scope["headers"] = [(b"x-unseen-token", token.encode()) for token in tokens]
    asyncio.run(AccessControl(app, token=TOKEN)(scope, receive, send))
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


@pytest.mark.parametrize("tokens", [(), ("",), (TOKEN[:-1],), (TOKEN.upper(),), (TOKEN, TOKEN)])
@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/runtime/acquire-task"])
def test_a_forwarder_that_hides_addresses_does_not_open_the_gate(path: str, tokens: tuple[str, ...]) -> None:
    """Section 5: through stunnel, socat or `ssh -R` every caller comes from 127.0.0.1."""
    assert status_of(path, client="127.0.0.1", tokens=tokens) == 403
    assert status_of("/v1/fleet/pull-messages", client="127.0.0.1", tokens=tokens) == 200


def test_the_token_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    token = gate_token(tmp_path)
    assert len(token) == 64
    assert gate_token(tmp_path) == token
    assert stat.S_IMODE(token_file(tmp_path).stat().st_mode) == 0o600
    token_file(tmp_path).write_text("\n", encoding="utf-8")
    with pytest.raises(UnseenError, match="holds no token; remove it"):
        gate_token(tmp_path)
