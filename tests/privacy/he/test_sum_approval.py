"""Approvals before a sum is decrypted: at least three clients, more than half, one list per round."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from unseen.errors import UnseenError
from unseen.methods import make_method
from unseen.models import Layout
from unseen.privacy.answer_journal import MemoryJournal
from unseen.privacy.context import ClientContext, Message, ServerContext
from unseen.privacy.he.encrypted_sums import PEERS
from unseen.privacy.he.key_exchange import KeyRing
from unseen.privacy.he.sum_approval import (
    APPROVAL,
    APPROVALS,
    IN_ROUND,
    IN_SUM,
    approvals_needed,
    approve_sum,
    request_approval,
    require_approved,
)
from unseen.privacy.serialization import bytes_to_tensor, json_to_tensor

LAYOUT = Layout.of(nn.Linear(2, 1))
TRAITS = make_method("fedavg").traits
ALL = ["a", "b", "c", "d"]


class Holders:
    """Clients with one key; `away` ones do not answer."""

    def __init__(self, key: bytes = b"the key that all clients hold") -> None:
        self.ring = KeyRing({"secret key": bytes_to_tensor(key)})
        self.journals = {name: MemoryJournal() for name in ALL}
        self.away: set[str] = set()
        self.refusals: dict[str, str] = {}
        self.faults: dict[str, str] = {}

    def context(self, client: str, round: int = 1) -> ClientContext:
        return ClientContext(
            client=client,
            round=round,
            seed=0,
            method=TRAITS,
            layout=LAYOUT,
            journal=self.journals.setdefault(client, MemoryJournal()),
        )

    def ask(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        found = {}
        for client, message in messages.items():
            if client not in self.away:
                try:
                    found[client] = approve_sum(message, self.ring, self.context(client))
                except UnseenError as error:
                    self.refusals[client] = str(error)
        return found

    def server(self) -> ServerContext:
        """A round of the server, as after a restart."""
        self.refusals = {}
        return ServerContext(
            round=1,
            seed=0,
            clients=tuple(ALL),
            method=TRAITS,
            layout=LAYOUT,
            weights=torch.zeros(LAYOUT.size),
            population=len(ALL),
            ask=self.ask,
            fault=self.faults.__setitem__,
            refusals=self.refusals,
        )


@pytest.fixture
def holders() -> Holders:
    return Holders()


def lists(in_sum: list[str]) -> Message:
    return {IN_ROUND: json_to_tensor(ALL), IN_SUM: json_to_tensor(in_sum)}


def test_what_most_clients_approved_is_decrypted(holders: Holders) -> None:
    holders.away = {"d"}
    clients, approval = request_approval(ALL, holders.server())
    assert clients == ALL
    require_approved(approval, holders.ring, holders.context("b"))
    require_approved(approval | {PEERS: torch.tensor([4])}, holders.ring, holders.context("b"))
    with pytest.raises(UnseenError, match="another number of clients than approved"):
        require_approved(approval | {PEERS: torch.tensor([1])}, holders.ring, holders.context("b"))


def test_a_round_is_approved_for_one_list_only(holders: Holders) -> None:
    """P2: a round repeated without one client was decrypted, and the difference was its update."""
    request_approval(ALL, holders.server())
    with pytest.raises(UnseenError, match=r"0 clients approved.*over other clients than a, b, c"):
        request_approval(["a", "b", "c"], holders.server())
    assert request_approval(ALL, holders.server())[0] == ALL, "the same clients as before go on"
    with pytest.raises(UnseenError, match="opened before"):
        approve_sum(lists(["b", "c", "d"]), holders.ring, holders.context("d"))
    approve_sum(lists(["b", "c", "d"]), holders.ring, holders.context("d", round=2))


def test_who_is_back_after_a_crash_is_left_out(holders: Holders) -> None:
    """P2: the first clients open their sum again, over themselves."""
    request_approval(["a", "b", "c"], holders.server())
    clients, approval = request_approval(ALL, holders.server())
    assert clients == ["a", "b", "c"]
    assert "left out" in holders.faults["d"]
    require_approved(approval, holders.ring, holders.context("a"))


def test_two_clients_are_not_enough(holders: Holders) -> None:
    """P4: each of two could subtract its own update."""
    with pytest.raises(UnseenError, match=r"a sum over 2 clients is not decrypted, 3 are needed"):
        approve_sum(lists(["a", "b"]), holders.ring, holders.context("a"))
    holders.away = {"c", "d"}
    with pytest.raises(UnseenError, match=r"2 clients approved the decryption of the sum, at least 3 must"):
        request_approval(ALL, holders.server())
    assert [approvals_needed(clients) for clients in (3, 4, 5, 6, 11)] == [3, 3, 3, 4, 6]


def test_nothing_is_decrypted_without_approvals_of_this_round_and_list(holders: Holders) -> None:
    """P2, P5: a server cannot make approvals, and those of other rounds, lists or keys do not count."""
    _, approval = request_approval(ALL, holders.server())
    forged = [
        lists(ALL),
        lists(ALL) | {APPROVALS: torch.zeros(4, 32, dtype=torch.uint8)},
        lists(ALL) | {APPROVALS: approval[APPROVALS].flip(0)},
        lists(["a", "b", "c"]) | {APPROVALS: approval[APPROVALS][:3]},
        {APPROVALS: approval[APPROVALS]},
    ]
    for message in forged:
        with pytest.raises(UnseenError):
            require_approved(message, holders.ring, holders.context("a"))
    with pytest.raises(UnseenError, match="0 of 4 clients approved"):
        require_approved(approval, holders.ring, holders.context("a", round=2))
    with pytest.raises(UnseenError, match="0 of 4 clients approved"):
        require_approved(approval, Holders(b"another key").ring, holders.context("a"))


def test_a_client_approves_no_sum_without_itself_and_no_impossible_list(holders: Holders) -> None:
    with pytest.raises(UnseenError, match="without its own update"):
        approve_sum(lists(["b", "c", "d"]), holders.ring, holders.context("a"))
    for wrong in (["a", "a", "b", "c"], ["a", "b", "z"]):
        with pytest.raises(UnseenError, match="list of clients in the sum is invalid"):
            approve_sum(lists(wrong), holders.ring, holders.context("a"))
    with pytest.raises(UnseenError, match="not told whose updates"):
        approve_sum({}, holders.ring, holders.context("a"))
    with pytest.raises(UnseenError, match="no encryption key"):
        approve_sum(lists(ALL), KeyRing({}), holders.context("a"))
    assert APPROVAL in approve_sum(lists(ALL), holders.ring, holders.context("a"))
