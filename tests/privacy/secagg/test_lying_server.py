"""Attacks of a server on secure summation that once read a single update: all must fail (P2, P4, P5)."""

from __future__ import annotations

import pytest
import torch
from masked_group import Group, updates_of

from unseen.errors import UnseenError
from unseen.privacy.secagg import shamir
from unseen.privacy.secagg.message_forms import MASKED, PART, REVEALED, ROSTER
from unseen.privacy.secagg.packing import HEAD, decode

SIZE = 6


def test_a_sum_over_two_is_never_opened():
    """P4: with one of three lost, a could subtract its own update from the merged one and read b's."""
    group = Group(3, SIZE, threshold=2)
    updates = updates_of(group, size=SIZE)
    sealed = group.seal(updates, group.protection.begin(group.server))
    del sealed["client 2"]
    with pytest.raises(UnseenError, match="2 clients sent a usable update, at least 3"):
        group.finish(sealed)


def test_clients_reveal_nothing_for_a_sum_over_two():
    """P4: a server without the check of its own gets no share from any client."""
    group = Group(5, SIZE, threshold=2)
    group.seal(updates_of(group, size=SIZE), group.protection.begin(group.server))
    two = torch.tensor([True, True, False, False, False])
    for name in ("client 0", "client 1"):
        with pytest.raises(UnseenError, match="2 clients sent something, 3 are needed"):
            group.reveal(name, two)


def alone(sealing, place):
    part = torch.zeros_like(sealing[PART])
    part[place] = True
    return {**sealing, PART: part}


def test_a_client_told_that_it_alone_takes_part_sends_nothing():
    """P5: it would add no pair mask, and the others would help to remove its own mask."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    sealing = group.protection.begin(group.server)
    sent = group.seal_one("client 3", updates["client 3"], alone(sealing, 3))
    if sent.withheld:
        assert "1 of 5 clients take part" in sent.withheld and not sent.extras
        return
    for name in group.names:
        if name != "client 3":
            group.seal_one(name, updates[name], sealing)
    everyone = torch.ones(5, dtype=torch.bool)
    shares = {
        place: group.reveal(name, everyone)[REVEALED][3]
        for place, name in enumerate(group.names, start=1)
        if name != "client 3"
    }
    seed = shamir.join({place: bytes(share.tolist()) for place, share in list(shares.items())[:3]})
    from unseen.privacy import crypto

    row = sent.extras[MASKED].numpy().view("uint64")
    read = decode(row - crypto.mask(seed, len(row)), bits=24)[HEAD : HEAD + SIZE]
    stolen = torch.from_numpy(read / updates["client 3"].samples)
    assert not torch.allclose(stolen.float(), updates["client 3"].weights, atol=1e-6), "the update was read"
    pytest.fail("it masked an update for itself alone")


def test_a_client_left_out_of_the_list_sends_nothing():
    """P5: a list without the client itself would make it add masks that nobody removes."""
    group = Group(5, SIZE)
    sealing = group.protection.begin(group.server)
    others = sealing[PART].clone()
    others[2] = False
    sent = group.seal_one("client 2", updates_of(group, size=SIZE)["client 2"], {**sealing, PART: others})
    assert "not among those that take part" in sent.withheld


def test_no_client_reveals_for_another_list_than_it_masked_for():
    """P5: the list of those that take part is bound when an update is masked."""
    group = Group(5, SIZE)
    sealing = group.protection.begin(group.server)
    group.seal(updates_of(group, size=SIZE), sealing)
    other = sealing[PART].clone()
    other[4] = False
    with pytest.raises(UnseenError, match="another list of clients that take part"):
        group.reveal("client 0", other, part=other)


def test_an_update_is_not_masked_again_for_another_list():
    """P5: two rows of one round with different pair masks would differ by masks that a server may know."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    sealing = group.protection.begin(group.server)
    group.seal(updates, sealing)
    other = sealing[PART].clone()
    other[4] = False
    again = group.seal_one("client 0", updates["client 0"], {**sealing, PART: other})
    assert "masks must be used only once" in again.withheld


def attempt(group, updates, *, lost=()):
    """Play the round once more, as after a crash of the server before its checkpoint."""
    sealed = group.seal(updates, group.protection.begin(group.server))
    return group.finish({name: update for name, update in sealed.items() if name not in lost})


def test_a_round_is_not_opened_again_over_other_clients():
    """P2: the difference of the two sums would be the update of the client lost in between."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    first = attempt(group, updates).updates
    with pytest.raises(UnseenError, match=r"opened before.*start a new run"):
        second = attempt(group, updates, lost={"client 4"}).updates
        left = first.samples * first.rows[0] - second.samples * second.rows[0]
        stolen = left / (first.samples - second.samples)
        assert torch.allclose(stolen.float(), updates["client 4"].weights, atol=1e-5)
    with pytest.raises(UnseenError, match="start a new run"):
        attempt(group, updates, lost={"client 0"})


def test_a_round_goes_on_after_a_crash_with_the_same_clients():
    """P2: an honest server that repeats the round over the same clients is served, with fresh keys."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    first = attempt(group, updates, lost={"client 4"})
    again = attempt(group, updates, lost={"client 4"})
    assert torch.equal(first.updates.rows, again.updates.rows)
    assert first.updates.clients == again.updates.clients


def test_a_crash_before_the_sum_was_opened_binds_nobody():
    """P2: nothing was read, so the next attempt may have other clients."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    group.seal(updates, group.protection.begin(group.server))
    assert len(attempt(group, updates, lost={"client 1"}).updates.clients) == 4


def test_another_round_may_have_other_clients():
    """P2: only a second sum of the same round is refused."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    attempt(group, updates)
    group.server.round = 2
    assert len(attempt(group, updates, lost={"client 1"}).updates.clients) == 4


def test_an_older_state_of_a_client_does_not_open_the_round_again():
    """P2: a coordinator that names an older version of the state cannot make a client forget what it did."""
    group = Group(5, SIZE)
    updates = updates_of(group, size=SIZE)
    sealed = group.seal(updates, group.protection.begin(group.server))
    before = {name: dict(state) for name, state in group.state.items()}
    group.finish(sealed)
    for name, state in before.items():
        group.state[name].clear()
        group.state[name].update(state)
    late = sealed.pop("client 4")
    with pytest.raises(UnseenError, match="start a new run"):
        group.finish(sealed)
    assert late.extras


def test_an_older_state_does_not_mask_a_second_update():
    """P2: two updates under the same masks would give their difference."""
    group = Group(4, SIZE)
    updates = updates_of(group, size=SIZE)
    sealing = group.protection.begin(group.server)
    before = {name: dict(state) for name, state in group.state.items()}
    group.seal(updates, sealing)
    group.state = before
    second = group.seal_one("client 0", updates_of(group, size=SIZE, seed=1)["client 0"], sealing)
    assert "masks must be used only once" in second.withheld


def test_keys_of_one_round_serve_no_other():
    """P2: the own mask depended on the secret alone, so another round number gave the same mask again."""
    group = Group(4, SIZE)
    sealing = group.protection.begin(group.server)
    sent = group.seal_one("client 0", updates_of(group, size=SIZE)["client 0"], sealing, round=2)
    assert "another round" in sent.withheld
    assert ROSTER in sealing
