"""A group of clients with their states and journals, and a server whose every message a test may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from unseen.models import Layout
from unseen.privacy import (
    ClientContext,
    MethodTraits,
    ReceivedUpdate,
    ServerContext,
    answer_message,
    make_protection,
)
from unseen.privacy import seal_update as seal
from unseen.privacy.answer_journal import MemoryJournal
from unseen.privacy.secagg.message_forms import PART
from unseen.privacy.secagg.unmasking import reveal_request
from unseen.training import Update


class Group:
    """Some clients with their memories, and a server that can lose each of them at any step."""

    def __init__(self, clients: int, size: int, *, method: MethodTraits | None = None, **chosen: Any) -> None:
        self.protection = make_protection("secure-sum", chosen)
        module = torch.nn.Linear(size, 1, bias=False)
        self.method = method or MethodTraits("fedavg")
        self.names = tuple(f"client {number}" for number in range(clients))
        self.state: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self.names}
        self.journals = {name: MemoryJournal() for name in self.names}
        self.identities: dict[str, Any] = {}
        self.faults: dict[str, str] = {}
        self.lost: set[str] = set()
        self.layout = Layout.of(module)
        self.answers: list[dict[str, Any]] = []
        self.server = ServerContext(
            round=1,
            seed=0,
            clients=self.names,
            method=self.method,
            layout=self.layout,
            weights=torch.zeros(size),
            population=clients,
            ask=self.ask,
            fault=self.faults.__setitem__,
        )

    def context(self, name, received=None, round=None):
        return ClientContext(
            client=name,
            round=round or self.server.round,
            seed=0,
            method=self.method,
            layout=self.layout,
            received=received or {},
            state=self.state[name],
            journal=self.journals[name],
            identity=self.identities.get(name),
        )

    def ask(self, messages):
        found = {
            name: answer_message(self.protection, message, self.context(name))
            for name, message in messages.items()
            if name not in self.lost
        }
        self.answers.append({"messages": messages, "answers": found})
        return found

    def seal(self, updates, sealing):
        return {
            name: self.seal_one(name, updates[name], sealing) for name in self.names if name not in self.lost
        }

    def seal_one(self, name, update, sealing, round=None):
        return seal(self.protection, update, self.context(name, sealing, round))

    def reveal(self, name, survivors, *, part=None):
        """Ask one client for its shares, as a server that checks nothing itself."""
        cohort = self.server.notes["cohort"]
        request = {
            **reveal_request(cohort, survivors, cohort.clients.index(name)),
            **({} if part is None else {PART: part}),
        }
        return answer_message(self.protection, request, self.context(name))

    def finish(self, sealed):
        received = [ReceivedUpdate(name, update) for name, update in sealed.items()]
        return self.protection.finish(self.server, received, torch.empty(0))


def updates_of(group, *, size, seed=0, scale=1.0, extras=None):
    draw = np.random.default_rng(seed)
    return {
        name: Update(
            weights=torch.from_numpy(draw.normal(0, scale, size)).float(),
            samples=int(draw.integers(1, 500)),
            steps=int(draw.integers(1, 9)),
            seen=int(draw.integers(1, 900)),
            loss=float(draw.random()),
            extras=extras(draw) if extras else {},
            diagnostics={"private": 1.0},
        )
        for name in group.names
    }


def weighted(updates, weighting="samples"):
    weights = torch.tensor(
        [float(update.samples) if weighting == "samples" else 1.0 for update in updates], dtype=torch.float64
    )
    rows = torch.stack([update.weights.double() for update in updates])
    return (weights / weights.sum()) @ rows, float(weights.sum())
