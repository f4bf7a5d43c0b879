"""The SuperLink's gate, request by request; and the list of what left a site."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tiny_sites import LoopbackGrid, tiny_job

from unseen.callbacks.base import Listener
from unseen.deploy import coordinator
from unseen.deploy.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.access_control import AccessControl
from unseen.deploy.ledger import Ledger, append_entry, describe_entry


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
def test_only_the_door_for_sites_is_open_to_the_network(path: str, client: str | None) -> None:
    assert status_of(path, client=client) == 403
    assert status_of("/v1/fleet/pull-messages", client=client) == 200


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "10.0.0.1"])
def test_this_machine_may_use_every_door(client: str) -> None:
    assert status_of("/v1/control/start-run", client=client) == 200


def test_the_ledger_names_every_kind_of_value_that_left(
    grid: LoopbackGrid, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
    coordinate(
        grid,  # type: ignore[arg-type]
        tiny_job(images, method="scaffold", rounds=1),
        out=tmp_path / "run",
        resume=False,
        terms=RoundPolicy(deadline=30.0),
        listener=Listener(),
    )
    ledger = Ledger(tmp_path)
    for site, question, answer in grid.log:
        if site == "a":
            append_entry(tmp_path, question, answer)
    lines = ledger.new()
    assert ledger.new() == []
    assert [line["ask"] for line in lines][:3] == ["census", "train", "evaluate"]
    (trained,) = [line for line in lines if line["ask"] == "train"]
    (update,) = [
        answer for site, question, answer in grid.log if site == "a" and question.header["ask"] == "train"
    ]
    assert trained["values"]["model weights"] == update.arrays["a/weights"].nbytes
    assert len(trained["values"]) == 3, "weights, the control variate, numbers"
    assert trained["bytes"] == update.nbytes == sum(trained["values"].values())
    assert trained["round"] == 1
    (sentence,) = describe_entry(trained)
    assert sentence.startswith("round 1: trained; sent model weights")


def test_errors_and_notices_are_told() -> None:
    line = {"ask": "train", "round": 2, "values": {}, "error": "disk full", "notice": "round 1: set aside"}
    assert list(describe_entry(line)) == [
        "the coordinator says: round 1: set aside",
        "could not do what was asked: disk full",
    ]
