"""Secure summation without engines: the sum is exact, single updates are noise, masks come off once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from masked_group import Group, updates_of, weighted
from scipy import stats

from unseen.errors import UnseenError, UsageError
from unseen.privacy import MethodTraits, make_protection
from unseen.privacy.secagg.masking import SECRET
from unseen.privacy.secagg.message_forms import MASKED, REVEALED
from unseen.privacy.secagg.packing import RangeError, decode, encode, largest

FLUKE = 1e-7
"""Masks are drawn by the operating system, so that the test must not be one that fails once in a while."""
EXTRA, TABLE = "something averaged", "something added up"


@settings(max_examples=60)
@given(data=st.data())
def test_the_sum_is_the_plain_one_whoever_falls_out(data):
    clients, size = data.draw(st.integers(3, 7)), data.draw(st.integers(1, 40))
    lost = data.draw(st.integers(0, clients - 3))
    weighting = data.draw(st.sampled_from(["samples", "uniform"]))
    bits = data.draw(st.integers(16, 32))
    group = Group(clients, size, method=MethodTraits("some", weighting=weighting), threshold=2, bits=bits)
    updates = updates_of(group, size=size, seed=data.draw(st.integers(0, 10**6)))
    sealing = group.protection.begin(group.server)
    sealed = group.seal(updates, sealing)
    gone = set(data.draw(st.permutations(group.names))[:lost])
    opened = group.finish({name: update for name, update in sealed.items() if name not in gone})
    stayed = [updates[name] for name in group.names if name not in gone]
    expected, total = weighted(stayed, weighting)
    error = 0.5 * len(stayed) / 2.0**bits / total
    assert torch.allclose(opened.updates.rows[0].double(), expected, rtol=1e-7, atol=error + 1e-7)
    assert opened.updates.samples.tolist() == [total]
    assert opened.seen == sum(update.seen for update in stayed)
    assert opened.updates.steps.tolist() == [sum(update.steps for update in stayed)]
    assert len(opened.updates) == len(stayed) and opened.diagnostics == {}


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_clients_may_fall_out_at_every_step(step):
    """While keys are told, shares are dealt or checked, or after an update was sent and counted."""
    group = Group(5, 4)
    updates = updates_of(group, size=4)
    asked = 0
    plain_ask = group.ask

    def ask(messages):
        nonlocal asked
        group.lost = {"client 1"} if asked == step else group.lost
        asked += 1
        return plain_ask(messages)

    group.server.ask = ask
    sealing = group.protection.begin(group.server)
    opened = group.finish(group.seal(updates, sealing))
    stayed = [update for name, update in updates.items() if step == 3 or name != "client 1"]
    expected, total = weighted(stayed)
    assert torch.allclose(opened.updates.rows[0].double(), expected, atol=1e-6)
    assert float(opened.updates.samples) == total


def test_too_few_left_stops_the_round():
    group = Group(5, 4)
    sealed = group.seal(updates_of(group, size=4), group.protection.begin(group.server))
    with pytest.raises(UnseenError, match="2 clients sent a usable update, at least 3 are needed"):
        group.finish(dict(list(sealed.items())[:2]))


def test_extras_are_averaged_or_added_up():
    facts = MethodTraits(
        "some",
        sends=("model weights", "number of samples", EXTRA, TABLE),
        merges={EXTRA: "mean", TABLE: "sum"},
    )
    group = Group(4, 3, method=facts)

    def extras(draw):
        return {
            EXTRA: torch.from_numpy(draw.normal(size=(2, 3))).float(),
            TABLE: torch.from_numpy(draw.integers(0, 9, (2, 2))),
        }

    updates = updates_of(group, size=3, extras=extras)
    opened = group.finish(group.seal(updates, group.protection.begin(group.server)))
    (found,) = opened.updates.extras
    samples = torch.tensor([float(update.samples) for update in updates.values()])
    stacked = torch.stack([update.extras[EXTRA] for update in updates.values()])
    assert torch.allclose(
        found[EXTRA], torch.einsum("k,kij->ij", samples / samples.sum(), stacked), atol=1e-6
    )
    assert torch.equal(found[TABLE], sum(update.extras[TABLE] for update in updates.values()))
    assert found[TABLE].dtype == torch.int64


def test_clients_that_send_different_kinds_are_not_added_up():
    facts = MethodTraits("some", sends=("model weights", "number of samples", TABLE), merges={TABLE: "sum"})
    group = Group(3, 3, method=facts)
    updates = updates_of(group, size=3)
    updates["client 0"] = replace(updates["client 0"], extras={TABLE: torch.ones(2)})
    with pytest.raises(UnseenError, match="2 clients sent a usable update"):
        group.finish(group.seal(updates, group.protection.begin(group.server)))
    assert "other kinds of values" in group.faults["client 0"]


def uniformity(values: np.ndarray) -> float:
    """p-value of a chi-square test that the bytes are uniform."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue)


def test_a_single_masked_update_is_indistinguishable_from_uniform():
    size = 40_000
    group = Group(3, size)
    updates = updates_of(group, size=size, scale=0.01)
    sealed = group.seal(updates, group.protection.begin(group.server))
    for update in sealed.values():
        row = update.extras[MASKED].numpy()
        assert uniformity(row) > FLUKE
        for place in range(8):
            assert uniformity(row.view(np.uint8)[place::8].copy()) > FLUKE, f"byte {place} of every number"
    plain = encode(updates["client 0"].weights.double().numpy(), bits=24, clients=3)
    assert uniformity(plain) < 1e-12, "the test itself tells an unmasked row"
    two = sealed["client 0"].extras[MASKED].numpy() + sealed["client 1"].extras[MASKED].numpy()
    assert uniformity(two) > FLUKE, "nor do two of three together show anything"


def test_the_same_update_looks_different_every_time():
    group = Group(3, 50)
    updates = updates_of(group, size=50)
    first = group.seal(updates, group.protection.begin(group.server))
    second = group.seal(updates, group.protection.begin(group.server))
    same = first["client 0"].extras[MASKED] == second["client 0"].extras[MASKED]
    assert not bool(same.any())


def test_nothing_readable_goes_with_the_masked_numbers():
    group = Group(3, 5)
    sealed = group.seal(updates_of(group, size=5), group.protection.begin(group.server))
    for update in sealed.values():
        assert (len(update.weights), update.samples, update.steps, update.seen, update.loss) == (
            0,
            0,
            0,
            0,
            0,
        )
        assert update.diagnostics == {}


def test_wrong_keys_fail():
    group = Group(4, 6)
    updates = updates_of(group, size=6)
    sealing = group.protection.begin(group.server)
    sealed = group.seal(updates, sealing)
    foreign = Group(4, 6)
    other = foreign.seal(updates, foreign.protection.begin(foreign.server))
    with pytest.raises(UnseenError, match="masks did not cancel"):
        group.finish({**sealed, "client 2": other["client 2"]})


def test_a_stranger_cannot_answer_for_a_client():
    group = Group(4, 6)
    sealed = group.seal(updates_of(group, size=6), group.protection.begin(group.server))
    foreign = Group(4, 6)
    foreign.seal(updates_of(foreign, size=6), foreign.protection.begin(foreign.server))
    group.state["client 2"] = foreign.state["client 2"]
    with pytest.raises(UnseenError, match="keys are not in the roster"):
        group.finish(sealed)


def test_a_share_changed_after_the_check_is_not_used():
    """Whoever changed it is not known: the round goes on with the shares of the others."""
    group = Group(5, 2)
    updates = updates_of(group, size=2)
    sealed = group.seal(updates, group.protection.begin(group.server))
    group.server.notes["cohort"].shares[1, 0, 5] ^= 1
    opened = group.finish(sealed)
    expected, _ = weighted(list(updates.values()))
    assert torch.allclose(opened.updates.rows[0].double(), expected, atol=1e-6) and not group.faults


def test_a_late_client_cannot_be_read():
    """The server opens the sum without a client, then gets its update, and asks again with it counted in."""
    group = Group(5, 8)
    updates = updates_of(group, size=8)
    sealed = group.seal(updates, group.protection.begin(group.server))
    late = sealed.pop("client 4")
    group.finish(sealed)
    assert all(SECRET not in group.state[name] for name in sealed)
    with pytest.raises(UnseenError, match="has helped already"):
        group.finish({**sealed, "client 4": late})
    question, said = group.answers[-1]["messages"], group.answers[-1]["answers"]
    revealed = {name: answer[REVEALED] for name, answer in said.items()}
    assert all(not bool(message["survivors"][4]) for message in question.values())
    assert all(shares.shape == (5, 66) for shares in revealed.values()), "one share a client, never both"


def test_masks_serve_once_only():
    group = Group(3, 4)
    sealing = group.protection.begin(group.server)
    group.seal(updates_of(group, size=4), sealing)
    again = group.seal(updates_of(group, size=4, seed=1), sealing)
    assert all("masks must be used only once" in update.withheld for update in again.values())


def test_numbers_out_of_range_stay_at_the_client():
    group = Group(3, 4)
    updates = updates_of(group, size=4)
    updates["client 0"] = replace(updates["client 0"], weights=torch.full((4,), 1e12))
    updates["client 1"] = replace(updates["client 1"], weights=torch.full((4,), float("nan")))
    sealed = group.seal(updates, group.protection.begin(group.server))
    assert "fixed-point range" in sealed["client 0"].withheld and "bits=N" in sealed["client 0"].withheld
    assert "NaN" in sealed["client 1"].withheld
    assert not sealed["client 0"].extras and sealed["client 2"].withheld == ""


@given(
    clients=st.integers(1, 50),
    bits=st.integers(1, 40),
    values=st.lists(st.floats(-1000, 1000), min_size=1, max_size=20),
)
def test_fixed_point_keeps_its_promise(clients, bits, values):
    numbers = np.array(values)
    room = largest(bits=bits, clients=clients)
    if np.abs(numbers).max() >= room:
        with pytest.raises(RangeError, match="does not fit"):
            encode(numbers, bits=bits, clients=clients)
        return
    whole = encode(numbers, bits=bits, clients=clients)
    total = np.zeros_like(whole)
    for _ in range(clients):
        total = total + whole
    assert np.allclose(decode(total, bits=bits), clients * numbers, rtol=1e-12, atol=clients * 0.5**bits)


@pytest.mark.parametrize(("given", "message"), [({"bits": 0}, "'bits'"), ({"threshold": 1}, "'threshold'")])
def test_settings_are_checked(given, message):
    with pytest.raises(UsageError, match=message):
        make_protection("secure-sum", given)


def test_float64_extras_are_summed_to_their_own_precision():
    method = MethodTraits(
        "some", sends=("model weights", "number of samples", "sums"), merges={"sums": "sum"}
    )
    group = Group(4, 3, method=method, threshold=2, bits=24)

    def extras(draw):
        return {"sums": torch.from_numpy(draw.normal(0, 10.0 ** np.arange(-9, 9), 18)).reshape(3, 6)}

    updates = updates_of(group, size=3, extras=extras)
    opened = group.finish(group.seal(updates, group.protection.begin(group.server)))
    expected = sum(update.extras["sums"] for update in updates.values())
    found = opened.updates.extras[0]["sums"]
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-15)
