"""Encrypted runs against plain ones: the same decisions, the same weights within 1e-4."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import unseen
from unseen.config import RunConfig
from unseen.errors import UnseenError, UsageError
from unseen.methods import METHODS, make_method
from unseen.models import Kind, Layout
from unseen.models.network import StagedNetwork
from unseen.privacy import make_protection
from unseen.privacy.he.ciphertext_packing import CIPHERTEXTS, FILLED, MAGNITUDES
from unseen.runner.prepare import prepare_run
from unseen.training import LocalTrainingConfig

FOUR = ("a", "b", "c", "d", "held")
PROTECTION = make_protection("encrypted")
SERVED = [name for name in METHODS if PROTECTION.incompatibility(make_method(name).traits) is None]
PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.02, momentum=0.5)


def rounds_of(records):
    return [record for record in records.entries if record["event"] == "round"]


def faults_of(records):
    return [(record["client"], record["reason"]) for record in records.entries if record["event"] == "fault"]


def difference(one, other):
    """Relative, of the whole vector and of the numbers that changed most."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def protected(experiment):
    """Encrypt an experiment, with the batches of the plain one."""
    return replace(experiment, protection=make_protection("encrypted", {"batch_seed": "run"}))


@pytest.mark.parametrize(("method", "rounds"), [("ppdg", 3), ("fedavg", 2)])
def test_digits_with_five_clients_give_the_run_without_encryption(method, rounds, go):
    config = RunConfig(
        data="rotated-digits",
        hold_out=("75",),
        method=method,
        model="lenet",
        lr=0.05,
        batch_size=16,
        batches_per_epoch=2,
    )
    experiment = prepare_run(config).experiment
    start, again = experiment.network.head.weight.detach().clone(), copy.deepcopy(experiment)
    plain, plain_records = go(experiment, "plain", rounds=rounds)
    coded, records = go(protected(again), "encrypted", rounds=rounds)
    assert len(experiment.federation) == 5 and len(plain.weights) > 10 * FILLED
    assert difference(coded.weights, plain.weights) < 1e-5
    layout = Layout.of(experiment.network)
    (head,) = (entry for entry in layout.entries if entry.name == "head.weight")
    moved = head.view(plain.weights) - start
    assert difference(head.view(coded.weights) - start, moved) < 1e-4, "also relative to what was learnt"
    assert not torch.equal(coded.weights, plain.weights)
    told = [record["diagnostics"] for record in rounds_of(records)]
    expected = [record["diagnostics"] for record in rounds_of(plain_records)]
    if method == "ppdg":
        assert sum(one["alignment_steps"] for one in expected) >= 5, "some conflicts must have been met"
        kept = ("conflicting_pairs", "alignment_steps")
        expected = [{key: one[key] for key in kept} for one in expected]
    assert told == expected
    for one, other in zip(rounds_of(records), rounds_of(plain_records), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5) and one["samples"] == other["samples"]
    assert faults_of(records) == []


def test_the_record_says_what_the_server_saw(make_experiment, go):
    _, records = go(protected(make_experiment("ppdg")), rounds=2)
    first, second = rounds_of(records)
    lines = {line["kind"]: line for line in second["left"]}
    assert set(lines) == {
        "model weights",
        "training loss",
        "number of samples",
        "counts of steps and of samples seen",
        "order of magnitude of the update",
        "coefficients of the clients",
        "numbers of conflicts and of changes",
        "mean of the updates and of the training loss",
        "approval of the sum",
    }
    assert lines["model weights"]["protected"] == "encrypted: the server held only ciphertexts"
    assert lines["model weights"]["bytes"] > 100_000
    assert "only a key holder decrypted" in lines["coefficients of the clients"]["protected"]
    assert lines["coefficients of the clients"]["values"] == 3
    assert lines["coefficients of the clients"]["from"] == ["a"], "one key holder decides for all"
    keys = {"public keys", "locked key", "public context", "number of the key"}
    assert keys <= {line["kind"] for line in first["left"]}, "keys travel once"
    assert "held ciphertexts and the public context only" in PROTECTION.statement()


@pytest.mark.parametrize("method", SERVED)
def test_served_methods_give_what_they_give_without(method, make_experiment, go):
    model = "clip-tiny" if METHODS[method].needs_texts else "lenet-1"
    plain, _ = go(make_experiment(method, plan=PLAN, model=model), "plain", rounds=1)
    experiment = protected(make_experiment(method, plan=PLAN, model=model))
    coded, records = go(experiment, "encrypted", rounds=1)
    assert difference(coded.weights, plain.weights) < 1e-5
    assert faults_of(records) == []
    closed_form = experiment.method.default_rounds is not None
    assert closed_form or not torch.equal(coded.weights, plain.weights), "sums are exact, means are not"


def test_batch_norm_is_averaged_and_not_operated_on(make_experiment, go):
    """Statistics far larger than the weights' changes, and counters whose largest value counts."""
    stages = {
        "conv": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        "flat": nn.Flatten(),
    }
    torch.manual_seed(0)
    network = StagedNetwork(stages, head=nn.Linear(144, 3))
    settings = {"strength": 0.4, "always": True}

    def fresh():
        return replace(make_experiment("ppdg", settings=settings, plan=PLAN), network=copy.deepcopy(network))

    plain, _ = go(fresh(), "plain")
    coded, _ = go(protected(fresh()), "encrypted")
    layout = Layout.of(network)
    for kind in (Kind.PARAMETER, Kind.FLOAT_BUFFER):
        place = layout.extent(kind)
        assert place.stop > place.start
        assert difference(coded.weights[place], plain.weights[place]) < 1e-5
    counters = layout.extent(Kind.INTEGER_BUFFER)
    assert torch.equal(coded.weights[counters], plain.weights[counters])
    assert float(coded.weights[counters][0]) > 0


def test_who_joins_later_gets_the_key_and_a_resumed_run_keeps_it(
    make_experiment, make_tiny_data, go, monkeypatch
):
    fresh = partial(make_experiment, data=make_tiny_data(FOUR), model="lenet-1")
    rounds = [[0, 1, 2], [1, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    drawn = iter(rounds)
    monkeypatch.setattr(
        "unseen.engine.round_loop.sample_clients", lambda *_, **__: torch.tensor(next(drawn)).numpy()
    )
    go(protected(fresh()), "parts", rounds=2)
    checkpoint, records = go(protected(fresh()), "parts", rounds=4)
    assert faults_of(records) == []
    made = [
        record["round"]
        for record in rounds_of(records)
        for line in record["left"]
        if line["kind"] == "public context"
    ]
    assert made == [1], "one key for the whole run"
    given = [
        (record["round"], line["from"])
        for record in rounds_of(records)
        for line in record["left"]
        if line["kind"] == "locked key"
    ]
    assert given == [(1, ["a"]), (2, ["b"])]
    drawn = iter(rounds)
    plain, _ = go(fresh(), "plain", rounds=4)
    assert difference(checkpoint.weights, plain.weights) < 1e-5


def test_a_client_without_the_key_withholds_its_update(make_experiment, make_tiny_data, go, monkeypatch):
    from unseen.privacy.he.key_exchange import KeyRing

    take = KeyRing.take
    taken = []

    def lost(self, box, key_id):
        taken.append(key_id)
        if len(taken) == 1:
            raise UnseenError("the encryption key was encrypted for another client")
        return take(self, box, key_id)

    monkeypatch.setattr(KeyRing, "take", lost)
    _, records = go(protected(make_experiment(data=make_tiny_data(FOUR), model="lenet-1")), rounds=2)
    assert faults_of(records) == [
        ("b", "the encryption key was encrypted for another client"),
        ("b", "it has no encryption key"),
    ]
    assert [record["clients"] for record in rounds_of(records)] == [["a", "c", "d"], ["a", "b", "c", "d"]]


def test_another_key_spoils_no_run_unseen(make_experiment, go, monkeypatch):
    """A client that encrypts with a key of its own: nobody can decrypt the sum, and the run says so."""
    from unseen.privacy.he.ckks import KeyHolder
    from unseen.privacy.he.key_exchange import KeyRing

    own, holder = KeyHolder.make(products=False), KeyRing.holder

    def changed(self, key_id=None):
        return own if key_id is not None and len(self.state) and self.state is intruder[0] else holder(self)

    intruder = [None]
    seal = type(PROTECTION).seal

    def sealed(self, update, context):
        if context.client == "b":
            intruder[0] = context.state
        return seal(self, update, context)

    monkeypatch.setattr(type(PROTECTION), "seal", sealed)
    monkeypatch.setattr(KeyRing, "holder", changed)
    with pytest.raises(UnseenError, match="round 1: no client could decrypt the sum"):
        go(protected(make_experiment(model="lenet-1")), rounds=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sent: {**sent, CIPHERTEXTS: sent[CIPHERTEXTS][:-5]}, "client 'b': a message .* is truncated"),
        (
            lambda sent: {**sent, CIPHERTEXTS: torch.zeros(8, dtype=torch.uint8)},
            "client 'b' sent 0 ciphertexts and 0 counters, expected were 2 and 0",
        ),
        (lambda sent: {**sent, MAGNITUDES: torch.zeros(3)}, "client 'b' sent 2 ciphertexts"),
    ],
)
def test_a_client_with_wrong_sizes_is_named(change, message, make_experiment, go, monkeypatch):
    seal = type(PROTECTION).seal

    def sealed(self, update, context):
        sent = seal(self, update, context)
        return replace(sent, extras=change(sent.extras)) if context.client == "b" else sent

    monkeypatch.setattr(type(PROTECTION), "seal", sealed)
    with pytest.raises(UnseenError, match=message):
        go(protected(make_experiment(model="lenet-1")), rounds=1)


def test_a_sum_over_two_is_not_decrypted(make_experiment, go, monkeypatch):
    """P4: each of two could subtract its own update from the sum."""
    plain = METHODS["fedavg"].client

    def client(self, work):
        update = plain(self, work)
        return update if work.client != "a" else replace(update, weights=update.weights * float("nan"))

    monkeypatch.setattr(METHODS["fedavg"], "client", client)
    with pytest.raises(UnseenError, match="2 clients sent a usable update, at least 3 are needed"):
        go(protected(make_experiment(model="lenet-1")), rounds=1)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("agrsum", "more than a weighted sum with coefficients from their inner products"),
        ("fednova", "needs .* of every client, and only sums are decrypted"),
        ("cwt", "from one client to the next"),
        ("deepall", "pools the data itself"),
    ],
)
def test_other_methods_are_refused_with_the_reason(method, reason, tmp_path):
    with pytest.raises(
        UsageError, match=rf"does not support {method}: .*{reason}.*It supports .*fedavg.*ppdg"
    ):
        unseen.train("rotated-digits", hold_out="75", method=method, protect="encrypted", out=tmp_path / "x")


def test_two_clients_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"at least 3 clients in a round, here are 2"):
        unseen.train(
            "rotated-digits", hold_out="75", sources=["0", "15"], protect="encrypted", out=tmp_path / "x"
        )


def test_the_user_reads_the_cost_before_the_run():
    config = RunConfig(data="rotated-digits", hold_out=("75",), method="ppdg", protect="encrypted")
    (note,) = prepare_run(config).notes
    assert note.startswith("encrypted: about ") and "s more for every round" in note
    assert "MB a round (0.622 MB without)" in note and "keys take 19 MB once" in note
