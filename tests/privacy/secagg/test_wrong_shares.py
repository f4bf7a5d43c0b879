"""Clients that send garbage in secure summation: they are named, and the round goes on without them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from masked_group import Group, updates_of, weighted

from unseen.errors import UnseenError
from unseen.privacy.secagg.message_forms import (
    ADVERTISE,
    CHECK,
    COMMITMENTS,
    CONTENTS,
    DEAL,
    MASKED,
    PUBLIC,
    REVEAL,
    REVEALED,
    SHARES,
    STEP,
    UNUSABLE,
)
from unseen.privacy.secagg.unmasking import find_liars

SIZE, LIAR = 6, "client 1"


def noise(value):
    return torch.randint_like(value, 0, 256)


def lying_in(group, step, lie):
    """Replace the liar's answers to one step."""
    honest = group.ask

    def ask(messages):
        found = honest(messages)
        if LIAR in found and torch.equal(messages[LIAR][STEP], step):
            found[LIAR] = lie(found[LIAR])
        return found

    group.server.ask = ask


def finish_without(group, *, lost=()):
    """Play the round; the result must be the mean over all but `lost`."""
    updates = updates_of(group, size=SIZE)
    sealed = group.seal(updates, group.protection.begin(group.server))
    opened = group.finish({name: update for name, update in sealed.items() if not update.withheld})
    expected, _ = weighted([update for name, update in updates.items() if name not in lost])
    assert torch.allclose(opened.updates.rows[0].double(), expected, atol=1e-6)
    assert opened.updates.clients == tuple(name for name in group.names if name not in lost)


GARBAGE_IN_SHARES = [
    lambda said: {**said, SHARES: noise(said[SHARES])},
    lambda said: {**said, COMMITMENTS: noise(said[COMMITMENTS])},
    lambda said: {SHARES: said[SHARES].flip(0), COMMITMENTS: said[COMMITMENTS]},
    lambda said: {**said, SHARES: said[SHARES][:2]},
    lambda said: {**said, SHARES: said[SHARES].long()},
    lambda said: {SHARES: said[SHARES]},
    lambda said: {},
]


@pytest.mark.parametrize("lie", GARBAGE_IN_SHARES)
def test_a_client_that_deals_garbage_is_named_and_left_out(lie):
    """Section 4, Shamir: one wrong share among the first spoiled the round, and nobody knew whose it was."""
    group = Group(5, SIZE)
    lying_in(group, DEAL, lie)
    finish_without(group, lost={LIAR})
    assert list(group.faults) == [LIAR]


GARBAGE_AS_KEYS = [
    lambda said: {PUBLIC: torch.zeros(64, dtype=torch.uint8)},
    lambda said: {PUBLIC: said[PUBLIC][:3]},
    lambda said: {PUBLIC: said[PUBLIC].float()},
    lambda said: {PUBLIC: torch.cat([said[PUBLIC][:32]] * 2)},
    lambda said: {},
    lambda said: {**said, "zzz": torch.zeros(1)},
]


@pytest.mark.parametrize("lie", GARBAGE_AS_KEYS)
def test_unusable_keys_are_a_fault_of_their_sender(lie):
    """Section 3b: low-order keys ended the round for all, wrong sizes and missing keys were exceptions."""
    group = Group(5, SIZE)
    lying_in(group, ADVERTISE, lie)
    finish_without(group, lost={LIAR})
    assert list(group.faults) == [LIAR]


def test_a_client_that_sends_the_keys_of_another_is_left_out():
    """Section 3b: the roster would not name every key once, and the honest owner would refuse it."""
    group = Group(5, SIZE)
    honest = group.ask

    def ask(messages):
        found = honest(messages)
        if torch.equal(messages["client 0"][STEP], ADVERTISE):
            found[LIAR] = found["client 0"]
        return found

    group.server.ask = ask
    finish_without(group, lost={LIAR})
    assert "used already" in group.faults[LIAR]


@pytest.mark.parametrize(
    "lie",
    [
        lambda said: {REVEALED: noise(said[REVEALED])},
        lambda said: {REVEALED: said[REVEALED].flip(0)},
        lambda said: {REVEALED: said[REVEALED][:1]},
        lambda said: {REVEALED: said[REVEALED].double()},
        lambda said: {},
    ],
)
def test_a_client_that_reveals_garbage_is_named_and_the_sum_is_opened_without_its_help(lie):
    """Section 3b: revealed garbage ended the round without a fault or went into the sum."""
    group = Group(5, SIZE)
    lying_in(group, REVEAL, lie)
    finish_without(group)
    assert list(group.faults) == [LIAR]


def test_a_client_that_slanders_all_others_is_left_out():
    group = Group(5, SIZE)
    lying_in(group, CHECK, lambda said: {UNUSABLE: torch.ones(5, dtype=torch.bool)})
    finish_without(group, lost={LIAR})
    assert "rejects the shares" in group.faults[LIAR]


def test_garbage_that_leaves_too_few_ends_the_round_and_names_its_sender():
    group = Group(3, SIZE)
    lying_in(group, DEAL, GARBAGE_IN_SHARES[0])
    with pytest.raises(UnseenError, match="2 clients agreed on usable shares, at least 3"):
        group.protection.begin(group.server)
    assert "unusable shares to client 0, client 2" in group.faults[LIAR]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda extras: {CONTENTS: extras[CONTENTS]},
        lambda extras: {MASKED: extras[MASKED]},
        lambda extras: {**extras, MASKED: extras[MASKED][:-1]},
        lambda extras: {**extras, MASKED: extras[MASKED].float()},
        lambda extras: {**extras, CONTENTS: torch.tensor([123, 0, 255], dtype=torch.uint8)},
        lambda extras: {**extras, CONTENTS: torch.full((50_000,), ord("["), dtype=torch.uint8)},
    ],
)
def test_an_unusable_row_is_a_fault_of_its_sender(spoil):
    """Section 3b: missing and short rows and garbage as contents were exceptions."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    sealed = group.seal(updates, group.protection.begin(group.server))
    extras = sealed[LIAR].extras
    for kind in [kind for kind in extras if kind not in spoil(dict(extras))]:
        del extras[kind]
    extras.update(spoil(extras) if len(extras) == 2 else {})
    assert group.protection.disclose(sealed[LIAR], group.method)
    opened = group.finish(sealed)
    expected, _ = weighted([update for name, update in updates.items() if name != LIAR])
    assert torch.allclose(opened.updates.rows[0].double(), expected, atol=1e-6)
    assert list(group.faults) == [LIAR]


@given(data=st.data())
def test_fewer_than_half_liars_never_make_an_honest_client_guilty(data):
    """Liars deal garbage to anyone and complain about anyone; honest clients complain about garbage only."""
    honest = [f"h{number}" for number in range(data.draw(st.integers(3, 8)))]
    liars = [f"l{number}" for number in range(data.draw(st.integers(0, (len(honest) - 1) // 2)))]
    everyone = [*honest, *liars]
    complaints = {name: set() for name in everyone}
    for liar in liars:
        for name in data.draw(st.lists(st.sampled_from(honest), unique=True)):
            complaints[name].add(liar)
        complaints[liar] = set(data.draw(st.lists(st.sampled_from(everyone), unique=True))) - {liar}
    blamed = find_liars(complaints, needed=max(len(everyone) // 2 + 1, 3))
    assert set(blamed) <= set(liars)
