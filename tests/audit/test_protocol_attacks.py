"""The audit's attacks on protocols: they succeed where a setting allows it, and say so."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from unseen.audit.protocol_attacks import ATTACKS, check_protocol
from unseen.privacy import make_protection
from unseen.privacy.answer_journal import MemoryJournal
from unseen.training import LocalTrainingConfig

DOMAINS = ("a", "b", "c", "d", "held")
PLAN = LocalTrainingConfig(epochs=1, batch_size=2, lr=0.05, momentum=0.5)


@pytest.fixture
def verdicts(make_experiment, make_tiny_data, monkeypatch):
    """Attacks a protection with its settings; returns verdict and sentence by finding.

    Batch orders come from a counter: with fresh ones the blur of these few batches is now and then below 0.5.
    """
    drawn = count(2000)
    monkeypatch.setattr(
        "unseen.privacy.batch_order.secrets", SimpleNamespace(randbits=lambda bits: next(drawn))
    )

    def attack(protect, settings=None, method="fedavg", model="lenet-1"):
        experiment = make_experiment(method, data=make_tiny_data(DOMAINS), plan=PLAN, model=model)
        experiment = replace(experiment, protection=make_protection(protect, settings))
        return {each.finding: each for each in check_protocol(experiment)}

    return attack


def test_secure_summation_holds_against_the_server(verdicts):
    """P2 to P5, as checks of a run's setting."""
    found = verdicts("secure-sum")
    assert found["P1"].verdict == "not applicable"
    assert [found[name].verdict for name in ("P2", "P4", "P5")] == ["held"] * 3
    assert found["P3"].verdict == "held" and "blurred" in found["P3"].sentence


def test_batches_of_the_run_s_seed_are_found_out(verdicts):
    """P3: with batch_seed=run the sums of several runs subtract to one update."""
    found = verdicts("secure-sum", {"batch_seed": "run"})
    assert found["P3"].verdict == "broken" and "d's update" in found["P3"].sentence
    assert found["P2"].verdict == "held"


def test_a_closed_form_has_no_batch_order_that_could_blur(verdicts):
    """P3: sums of features are the same in every run."""
    assert verdicts("secure-sum", method="ridge")["P3"].verdict == "broken"


def test_clients_that_forget_are_found_out(verdicts, monkeypatch):
    """P1, P2: without the journal of answers both attacks succeed again."""
    monkeypatch.setattr(MemoryJournal, "admit", lambda self, **_: None)
    assert verdicts("secure-sum", {"batch_seed": "run"})["P2"].verdict == "broken"


def test_noise_of_samples_does_not_cancel(verdicts):
    """P1: a second answer for the same round is refused."""
    found = verdicts("dp-samples", {"noise": 5.0})
    assert found["P1"].verdict == "held"
    assert all(found[name].verdict == "not applicable" for name in ("P2", "P3", "P4", "P5"))


def test_encryption_holds_but_for_a_server_that_computes_something_else(verdicts):
    """P2, P4: clients approve one list of at least three per round before anything is decrypted."""
    pytest.importorskip("tenseal")
    found = verdicts("encrypted", {"batch_seed": "run"})
    assert [found[name].verdict for name in ("P2", "P3", "P4")] == ["held", "broken", "held"]
    assert "decrypted as a sum" in found["P5"].sentence


def test_every_attack_has_one_sentence_without_protection(verdicts):
    found = verdicts("none")
    assert set(found) == set(ATTACKS)
    for each in found.values():
        assert each.verdict == "not applicable" and each.sentence.endswith(".")
