"""Extras under encryption: exact sums, nothing of a single client, and ridge as without encryption."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.config import RunConfig
from unseen.engine import SerialEngine
from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UnseenError
from unseen.methods import METHODS
from unseen.methods.closed_form.feature_sums import SUMS, VALIDATION_SUMS, FeatureSums
from unseen.models import Layout
from unseen.privacy import MethodTraits, ReceivedUpdate, make_protection
from unseen.privacy.he.ciphertext_packing import FILLED, CiphertextLayout
from unseen.privacy.he.ckks import KeyHolder, open_ciphertext
from unseen.privacy.he.encrypted_sums import (
    ADDED,
    ADDENDS,
    CONTENTS,
    RANGE,
    RangeError,
    added_request,
    check_addends,
    count_addends,
    decrypt_added,
    describe_extras,
    encrypt_extras,
    find_contents,
    unpack_added,
)
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess
from unseen.privacy.serialization import split_parts
from unseen.runner.prepare import prepare_run
from unseen.runs.checkpoint import StateStore
from unseen.training import Update

STATED = 2.0**-40
"""Absolute error of a sum, beside 1e-14 of the largest number in its ciphertext."""


@pytest.fixture(scope="module")
def holder():
    return KeyHolder.make(products=False)


def update_with(extras, samples=10):
    return Update(weights=torch.zeros(1), samples=samples, steps=1, seen=samples, loss=0.0, extras=extras)


def traits(**merges):
    kinds = ("model weights", "number of samples", *merges)
    return MethodTraits("some", sends=kinds, merges=merges)


def sealed(holder, clients, method):
    """What the server gets from every client."""
    return [
        ReceivedUpdate(
            str(number),
            replace(update, extras=encrypt_extras(update, holder, method=method, clients=len(clients))),
        )
        for number, update in enumerate(clients)
    ]


def add_up(holder, clients, method):
    """The whole way of extras: encrypted, added up by the server, decrypted, unpacked."""
    server, received = EncryptedServer(), sealed(holder, clients, method)
    server.open(holder.public(products=False))
    contents = find_contents(received)
    for client, update in received:
        server.take(client, check_addends(client, update.extras, contents))
    added = server.plain_sum(range(count_addends(contents)))
    answer = decrypt_added(added_request(added, contents, clients=len(clients)), holder)
    weight = float(sum(update.samples for update in clients))
    return unpack_added(answer[ADDED], contents, method=method, weight=weight)


@given(
    clients=st.integers(2, 5),
    numbers=st.integers(1, 2 * FILLED + 1),
    exponent=st.integers(-9, 9),
    seed=st.integers(0, 99),
)
@settings(max_examples=15)
def test_encrypted_sums_are_the_plain_ones(clients, numbers, exponent, seed, holder):
    generator = torch.Generator().manual_seed(seed)
    sent = [
        torch.randn(numbers, dtype=torch.float64, generator=generator) * 10.0**exponent
        for _ in range(clients)
    ]
    found = add_up(holder, [update_with({"x": value}) for value in sent], traits(x="sum"))["x"]
    expected = torch.stack(sent).sum(0)
    largest = max(float(value.abs().max()) for value in sent)
    assert float((found - expected).abs().max()) <= STATED + 1e-14 * clients * largest


def test_means_are_weighted_and_shapes_and_types_are_kept(holder):
    clients = [
        update_with(
            {"x": torch.full((2, 3), float(number)), "n": torch.tensor([number, 7])}, samples=10 * number
        )
        for number in (1, 3)
    ]
    found = add_up(holder, clients, traits(x="mean", n="sum"))
    torch.testing.assert_close(found["x"], torch.full((2, 3), (10 * 1 + 30 * 3) / 40))
    assert torch.equal(found["n"], torch.tensor([4, 14]))


def test_numbers_out_of_range_stay_at_the_client(holder):
    method, large = traits(x="sum"), torch.tensor([RANGE / 4], dtype=torch.float64)
    fits = [update_with({"x": 0.99 * large}) for _ in range(4)]
    assert float(add_up(holder, fits, method)["x"]) == pytest.approx(4 * 0.99 * float(large), rel=1e-13)
    with pytest.raises(RangeError, match=r"a number of magnitude 6\.87e\+10 cannot be added up"):
        encrypt_extras(update_with({"x": large}), holder, method=method, clients=4)


def test_a_single_client_s_numbers_are_not_decrypted(holder):
    """A server that names one client is refused; if it claims two, the leading one gives it away."""
    method = traits(x="sum")
    (one,) = sealed(holder, [update_with({"x": torch.ones(5)})], method)
    contents, parts = find_contents([one]), split_parts(one.update.extras[ADDENDS])
    with pytest.raises(UnseenError, match="that client's own numbers; it is not decrypted"):
        decrypt_added(added_request(parts, contents, clients=1), holder)
    with pytest.raises(UnseenError, match="not what the clients encrypted"):
        decrypt_added(added_request(parts, contents, clients=2), holder)


def test_another_key_is_noticed_whatever_the_numbers(holder):
    other = KeyHolder.make(products=False)
    for size in (1.0, RANGE / 4):
        clients = [update_with({"x": torch.full((9,), size, dtype=torch.float64)}) for _ in range(2)]
        method, server = traits(x="sum"), EncryptedServer()
        server.open(holder.public(products=False))
        for name, key in (("a", holder), ("b", other)):
            server.take(name, split_parts(encrypt_extras(clients[0], key, method=method, clients=2)[ADDENDS]))
        contents = find_contents(sealed(holder, clients, method))
        with pytest.raises(UnseenError, match="another key"):
            decrypt_added(added_request(server.plain_sum(range(1)), contents, clients=2), holder)


def test_clients_that_sent_different_kinds_are_named(holder):
    method = traits(x="sum")
    received = [
        *sealed(holder, [update_with({"x": torch.ones(5)})], method),
        ReceivedUpdate("b", sealed(holder, [update_with({"x": torch.ones(6)})], method)[0].update),
    ]
    with pytest.raises(UnseenError, match="clients '0' and 'b' sent different kinds of values"):
        find_contents(received)
    with pytest.raises(UnseenError, match="client 'b' sent 0 ciphertexts to add up, expected were 1"):
        check_addends("b", {}, find_contents(received[:1]))


def test_without_the_key_the_message_shows_nothing_of_the_sums(make_experiment):
    """The attacker has a client's whole message, the public context, and knows the true sums to compare."""
    experiment = make_experiment("ridge", model="lenet-1")
    truth = (
        Workspace(experiment)
        .train_client(0, {}, RoundStart(1, Workspace(experiment).flat.read()))
        .extras[SUMS]
    )
    method, keys = experiment.method.traits, KeyHolder.make(products=False)
    update = update_with({SUMS: truth})
    messages = [encrypt_extras(update, keys, method=method, clients=3) for _ in range(2)]
    (first, *_), (again, *_) = (split_parts(message[ADDENDS]) for message in messages)
    raw = np.frombuffer(first[-200_000:], dtype=np.uint8).astype(np.float64)
    assert abs(np.corrcoef(raw[: len(truth)], truth.numpy()[: len(raw)])[0, 1]) < 0.1
    same = np.frombuffer(first[-200_000:], np.uint8) == np.frombuffer(again[-200_000:], np.uint8)
    assert float(same.mean()) < 0.02, "the same sums look different every time"
    assert truth.numpy()[:4].tobytes() not in first
    assert not any(str(float(value)) in bytes(messages[0][CONTENTS].tolist()).decode() for value in truth[:5])
    server = EncryptedServer()
    server.open(keys.public(products=False))
    with pytest.raises(ValueError, match="secret_key"):
        open_ciphertext(server.context, first).decrypt()


def test_what_reaches_the_server_is_only_the_sum(make_experiment, go, monkeypatch):
    """All that key holders return in a run of ridge: one sum of everybody's sums, and no client's own."""
    from unseen.privacy.he import protection as module

    answers, sent_in = [], []
    answer, run, seal = module.Encrypted.answer, ServerProcess.run, module.Encrypted.seal
    own = []

    def heard(self, message, context):
        result = answer(self, message, context)
        answers.append(result)
        return result

    def watched(self, function, *args, **named):
        sent_in.append(function.__name__)
        return run(self, function, *args, **named)

    def watched_seal(self, update, context):
        own.append(update.extras)
        result = seal(self, update, context)
        assert set(result.extras).isdisjoint(update.extras) and len(result.weights) == 0
        return result

    monkeypatch.setattr(module.Encrypted, "answer", heard)
    monkeypatch.setattr(module.Encrypted, "seal", watched_seal)
    monkeypatch.setattr(ServerProcess, "run", watched)
    experiment = replace(make_experiment("ridge", model="lenet-1"), protection=make_protection("encrypted"))
    go(experiment, rounds=1)
    opened = [message[ADDED] for message in answers if ADDED in message]
    assert len(opened) == 1 and len(own) == 3 and sent_in.count("plain_sum") == 1
    rows = [torch.cat([extras[SUMS], extras[VALIDATION_SUMS]]) for extras in own]
    whole = torch.stack(rows).sum(0)
    assert float((opened[0] - whole).abs().max()) <= STATED + 3e-14 * float(whole.abs().max())
    for row in rows:
        assert float((opened[0] - row).norm()) > 0.1 * float(row.norm())


@pytest.mark.parametrize("strength", [None, 0.1])
def test_ridge_equals_the_plain_one(strength, make_experiment, go):
    options = {"settings": {"strength": strength}, "model": "lenet-1"}
    plain, told = go(make_experiment("ridge", **options), "plain", rounds=1)
    experiment = make_experiment("ridge", **options)
    coded, records = go(replace(experiment, protection=make_protection("encrypted")), "coded", rounds=1)
    one, other = (Layout.of(experiment.network).tensors(point.weights) for point in (coded, plain))
    for name in ("head.weight", "head.bias"):
        error = float((one[name] - other[name]).norm() / other[name].norm())
        assert error < 1e-3, name
    rounds = [next(entry for entry in each.entries if entry["event"] == "round") for each in (records, told)]
    strengths = [entry["diagnostics"]["strength"] for entry in rounds]
    assert strengths[0] == strengths[1]


def test_records_say_what_left_encrypted(make_experiment, go):
    experiment = replace(make_experiment("ridge", model="lenet-1"), protection=make_protection("encrypted"))
    _, records = go(experiment, rounds=1)
    (entry,) = (record for record in records.entries if record["event"] == "round")
    lines = {line["kind"]: line for line in entry["left"]}
    values = len(FeatureSums.zeros(experiment.network.feature_size, 3).pack())
    for kind in (SUMS, VALIDATION_SUMS):
        assert lines[kind]["protected"] == "encrypted: the server held only ciphertexts"
        assert lines[kind]["values"] == values and lines[kind]["bytes"] > 100_000
    assert lines[CONTENTS]["protected"] == "shapes and names only"
    assert lines[ADDED]["values"] == 2 * values and "only the sums" in lines[ADDED]["protected"]
    assert len(lines[ADDED]["from"]) == 1 and ADDENDS not in lines


def test_a_head_is_started_encrypted_before_a_method_that_needs_products(make_tiny_data, tmp_path):
    """The key of the first exchange allows no products of ciphertexts; PPDG gets another."""
    from unseen.runner.run import run

    def go(name, **more):
        config = RunConfig.from_mapping(
            {
                "data": "tiny",
                "hold_out": "held",
                "model": "lenet-1",
                "method": "ppdg",
                "head": "ridge",
                "rounds": 1,
                "batch_size": 8,
                "workers": 1,
                "lr": 0.001,
                **more,
            }
        )
        return run(config, out=tmp_path / name, report=False, data=make_tiny_data()).values

    plain, coded = go("plain"), go("coded", protect="encrypted", protect_settings={"batch_seed": "run"})
    assert coded["metrics"]["target"]["accuracy"] == plain["metrics"]["target"]["accuracy"]


def test_two_encryptions_open_to_the_same_sums(make_experiment, tmp_path):
    """Ciphertexts are random, the sums in them are not."""
    experiment = make_experiment("ridge", model="lenet-1")
    engine = SerialEngine(experiment, StateStore(tmp_path / "states"))
    sent = engine.train([0, 1, 2], RoundStart(1, engine.workspace.flat.read()))[1]
    holder = KeyHolder.make(products=False)
    updates = [each.update for each in sent]
    one, other = (add_up(holder, updates, experiment.method.traits) for _ in range(2))
    for kind in (SUMS, VALIDATION_SUMS):
        torch.testing.assert_close(one[kind], other[kind], rtol=1e-13, atol=2 * STATED)


QUICK = {"data": "tiny", "hold_out": "held", "model": "mnist-cnn", "batch_size": 8}


@pytest.mark.parametrize("method", ["ridge", "class-means", "scaffold"])
def test_cost_notes_count_what_clients_really_send(method, make_tiny_data):
    config = RunConfig.from_mapping({**QUICK, "method": method, "protect": "encrypted"})
    setup = prepare_run(config, data=make_tiny_data())
    (note,) = (note for note in setup.notes if note.startswith("encrypted"))
    workspace = Workspace(replace(setup.experiment, protection=make_protection("none")))
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    described = setup.experiment.method.describe_extras(workspace.module)
    assert {kind: (value.shape, value.dtype) for kind, value in described.items()} == {
        kind: (value.shape, value.dtype) for kind, value in update.extras.items()
    }
    plain = update.weights.nbytes + sum(value.nbytes for value in update.extras.values())
    assert f"MB a round ({plain / 1e6:.3g} MB without)" in note
    state = CiphertextLayout.of(workspace.flat.layout).rows[-1].stop
    ciphertexts = state + count_addends(describe_extras(update.extras))
    sent = float(note.split("a client sends ")[1].split(" MB")[0])
    assert sent == pytest.approx(0.2351 * ciphertexts, rel=0.01)


def test_a_cost_note_says_what_it_does_not_count(make_tiny_data, monkeypatch):
    monkeypatch.setattr(METHODS["class-means"], "describe_statistics", lambda *_: {})
    config = RunConfig.from_mapping({**QUICK, "method": "class-means", "protect": "encrypted"})
    notes = prepare_run(config, data=make_tiny_data()).notes
    (note,) = (note for note in notes if note.startswith("encrypted"))
    assert note.endswith("feature sums by class not counted, whose size is not known before the run")


def test_the_start_of_a_head_has_a_cost_note_of_its_own(make_tiny_data):
    config = RunConfig.from_mapping({**QUICK, "head": "ridge", "protect": "encrypted"})
    notes = prepare_run(config, data=make_tiny_data()).notes
    first, second = (note for note in notes if note.startswith("encrypted"))
    assert "s more for every round" in first and "s more to start the head" in second
