"""Approvals before a sum is decrypted: by all clients in it, at least three, one list per round."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from unseen.errors import UnseenError
from unseen.methods import make_method
from unseen.models import Layout
from unseen.privacy.answer_journal import MemoryJournal
from unseen.privacy.context import ClientContext, Message, ServerContext
from unseen.privacy.he.encrypted_sums import PEERS
from unseen.privacy.he.key_exchange import STEP, KeyRing
from unseen.privacy.he.sum_approval import (
    APPROVAL,
    APPROVALS,
    IN_SUM,
    PRESENT,
    answer_present,
    approve_sum,
    request_approval,
    require_approved,
)
from unseen.privacy.serialization import bytes_to_tensor, json_to_tensor

LAYOUT = Layout.of(nn.Linear(2, 1))
TRAITS = make_method("fedavg").traits
ALL = ["a", "b", "c", "d"]


class Holders:
    """Clients with one key; `away` ones do not answer, `dying` ones only say that they are there."""

    def __init__(self, key: bytes = b"the key that all clients hold") -> None:
        self.ring = KeyRing({"secret key": bytes_to_tensor(key)})
        self.journals = {name: MemoryJournal() for name in ALL}
        self.away: set[str] = set()
        self.dying: set[str] = set()
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
            if client in self.away:
                continue
            if torch.equal(message[STEP], PRESENT):
                found[client] = answer_present()
            elif client not in self.dying:
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
    return {IN_SUM: json_to_tensor(in_sum)}


def approve(holders: Holders, in_sum: list[str], by: list[str]) -> Message:
    """Have clients approve a list, and put their approvals where a key holder looks for them."""
    codes = {name: approve_sum(lists(in_sum), holders.ring, holders.context(name)) for name in by}
    nothing = {APPROVAL: torch.zeros(32, dtype=torch.uint8)}
    rows = [codes.get(name, nothing)[APPROVAL] for name in in_sum]
    return lists(in_sum) | {APPROVALS: torch.stack(rows)}


def test_what_all_clients_approved_is_decrypted(holders: Holders) -> None:
    clients, approval = request_approval(ALL, holders.server())
    assert clients == ALL
    require_approved(approval, holders.ring, holders.context("b"))
    require_approved(approval | {PEERS: torch.tensor([4])}, holders.ring, holders.context("b"))
    with pytest.raises(UnseenError, match="another number of clients than approved"):
        require_approved(approval | {PEERS: torch.tensor([1])}, holders.ring, holders.context("b"))


@pytest.mark.parametrize("clients", [5, 7])
def test_two_halves_of_a_round_do_not_get_two_lists_approved(clients: int, holders: Holders) -> None:
    """P2: two sums that differ in one client, each approved by most of its clients, but none by all."""
    *common, one, other = [f"site {number}" for number in range(clients + 1)]
    half = len(common) // 2
    for extra, helpers in ((one, common[:half]), (other, common[half:])):
        in_sum = [*common, extra]
        approval = approve(holders, in_sum, [*helpers, extra])
        assert len([*helpers, extra]) > len(in_sum) / 2
        with pytest.raises(UnseenError, match=rf"{half + 1} of its {clients} clients approved; all must"):
            require_approved(approval, holders.ring, holders.context(extra))
    for name in common[:half]:
        with pytest.raises(UnseenError, match="opened before"):
            approve_sum(lists([*common, other]), holders.ring, holders.context(name))


@given(data=st.data(), clients=st.integers(3, 9))
@settings(max_examples=50)
def test_approved_lists_of_a_round_have_no_client_in_common(data: st.DataObject, clients: int) -> None:
    """P2: whatever lists a server names to whom, two approved ones are the same or share nobody."""
    holders, names = Holders(), [f"site {number}" for number in range(clients)]
    proposed = data.draw(st.lists(st.lists(st.sampled_from(names), min_size=3, unique=True), max_size=4))
    approved = []
    for in_sum in proposed:
        helpers = []
        for name in data.draw(st.permutations(in_sum)):
            try:
                approve_sum(lists(in_sum), holders.ring, holders.context(name))
                helpers.append(name)
            except UnseenError:
                assert any(name in other for other in proposed if set(other) != set(in_sum))
        with suppress(UnseenError):
            require_approved(approve(holders, in_sum, helpers), holders.ring, holders.context(in_sum[0]))
            approved.append(frozenset(in_sum))
    for one, other in combinations(set(approved), 2):
        assert not one & other
    assert not proposed or approved, "whoever is asked first is not stopped"


def test_who_is_gone_since_it_sent_its_update_is_left_out(holders: Holders) -> None:
    holders.away = {"d"}
    clients, approval = request_approval(ALL, holders.server())
    assert clients == ["a", "b", "c"]
    require_approved(approval, holders.ring, holders.context("c"))


def test_who_goes_while_others_approve_is_waited_for(holders: Holders) -> None:
    holders.dying = {"d"}
    with pytest.raises(UnseenError, match=r"3 of 4 clients approved.*all must.*Continue with --resume"):
        request_approval(ALL, holders.server())
    holders.dying = set()
    assert request_approval(ALL, holders.server())[0] == ALL


def test_a_round_is_approved_for_one_list_only(holders: Holders) -> None:
    """P2: a round repeated without one client was decrypted, and the difference was its update."""
    request_approval(ALL, holders.server())
    with pytest.raises(UnseenError, match=r"0 of 3 clients approved.*over other clients than a, b, c"):
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
    with pytest.raises(UnseenError, match=r"0 of 2 clients approved .* all must, and at least 3"):
        request_approval(ALL, holders.server())
    holders.away = set()
    assert request_approval(ALL, holders.server())[0] == ALL, "nobody is bound by what was not approved"


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
    with pytest.raises(UnseenError, match="0 of its 4 clients approved"):
        require_approved(approval, holders.ring, holders.context("a", round=2))
    with pytest.raises(UnseenError, match="0 of its 4 clients approved"):
        require_approved(approval, Holders(b"another key").ring, holders.context("a"))


def test_a_client_approves_no_sum_without_itself_and_no_impossible_list(holders: Holders) -> None:
    with pytest.raises(UnseenError, match="without its own update"):
        approve_sum(lists(["b", "c", "d"]), holders.ring, holders.context("a"))
    with pytest.raises(UnseenError, match="names one of them twice"):
        approve_sum(lists(["a", "a", "b", "c"]), holders.ring, holders.context("a"))
    with pytest.raises(UnseenError, match="not told whose updates"):
        approve_sum({}, holders.ring, holders.context("a"))
    with pytest.raises(UnseenError, match="no encryption key"):
        approve_sum(lists(ALL), KeyRing({}), holders.context("a"))
    assert APPROVAL in approve_sum(lists(ALL), holders.ring, holders.context("a"))
