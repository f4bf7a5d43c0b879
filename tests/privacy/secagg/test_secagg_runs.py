"""Runs under secure summation: the weights of plain runs to fixed-point precision, on every engine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import unseen
from unseen.aggregation import SummedUpdates
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.privacy import make_protection
from unseen.training import LocalTrainingConfig

SUMMED = {"protect": "secure-sum", "protect_settings": {"batch_seed": "run"}}
"""With the batches of a plain run, so that weights can be compared."""
PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.02, momentum=0.5)
SERVED = [
    name
    for name in METHODS
    if make_protection("secure-sum").incompatibility(make_method(name).traits) is None
]


def weights_of(folder):
    from safetensors.torch import load_file

    return torch.cat([value.flatten().double() for _, value in sorted(load_file(folder).items())])


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """FedAvg on rotated-digits with five clients: plain, protected, and protected in worker processes."""
    place = tmp_path_factory.mktemp("digits")

    def train(name, **options):
        return unseen.train(
            "rotated-digits", hold_out="75", rounds=2, batches_per_epoch=4, out=place / name, **options
        ).folder

    return {
        "plain": train("plain", workers=1),
        "local": train("local", workers=1, **SUMMED),
        "workers": train("workers", workers=2, **SUMMED),
    }


def test_fedavg_on_digits_gives_the_weights_of_a_plain_run(digits):
    plain, local, workers = (weights_of(digits[name] / "model.safetensors") for name in digits)
    assert torch.equal(local, workers), "masks cancel to the last bit, whatever the keys"
    assert not torch.equal(plain, local)
    assert float((plain - local).abs().max()) < 1e-5, "what rounding for the sum leaves after all rounds"
    one, other = (json.loads((digits[name] / "result.json").read_text()) for name in ("plain", "local"))
    assert one["metrics"]["target"]["accuracy"] == other["metrics"]["target"]["accuracy"]
    assert one["run_id"] != other["run_id"]


def test_the_record_says_what_left_and_how(digits):
    records = [json.loads(line) for line in (digits["workers"] / "records.jsonl").read_text().splitlines()]
    rounds = [record for record in records if record["event"] == "round"]
    for record in rounds:
        lines = {line["kind"]: line for line in record["left"]}
        assert lines["model weights"]["protected"].startswith("masked")
        assert lines["number of samples"]["protected"].startswith("masked")
        assert lines["encrypted shares"]["protected"].startswith("encrypted")
        assert "diagnostics" not in lines and record["diagnostics"] == {}
        assert all(line["from"] == "all" for line in lines.values())
        assert record["bytes_up"] == 5 * sum(line["bytes"] for line in lines.values())
    assert any("secure-sum: a client's model takes" in note for note in records[0]["data"]["notes"])


def test_no_secret_outlives_its_round(digits):
    from safetensors.torch import load_file

    kept = list((digits["workers"] / "checkpoints" / "clients").iterdir())
    assert len(kept) == 5 and all(load_file(path) == {} for path in kept)


@pytest.mark.parametrize("method", SERVED)
def test_served_methods_give_the_same_from_sums(method, make_experiment, go, monkeypatch):
    """The server half gets one row, the mean; what it makes of it is what it makes of all rows."""
    plain, _ = go(make_experiment(method, plan=PLAN), "plain")
    seen = []
    server = METHODS[method].server
    monkeypatch.setattr(METHODS[method], "server", lambda self, work: seen.append(work) or server(self, work))
    experiment = replace(
        make_experiment(method, plan=PLAN),
        protection=make_protection("secure-sum", SUMMED["protect_settings"]),
    )
    summed, records = go(experiment, "summed")
    assert all(isinstance(work.updates, SummedUpdates) and len(work.updates.rows) == 1 for work in seen)
    assert torch.allclose(summed.weights, plain.weights, rtol=1e-3, atol=2e-5)
    trains = METHODS[method].default_rounds is None
    assert not (trains and torch.equal(summed.weights, plain.weights)), "states are sent with fewer digits"
    assert "fault" not in [record["event"] for record in records.entries]


def test_what_a_wrong_weighting_would_do_is_caught(make_experiment, go, monkeypatch):
    experiment = replace(make_experiment("fedavg"), protection=make_protection("secure-sum"))
    monkeypatch.setattr(type(experiment.method), "weighting", "uniform")
    with pytest.raises(ValueError, match=r"no other mean.*equal weights"):
        go(experiment)


def test_a_client_that_diverges_is_left_out_of_the_sum(make_experiment, make_tiny_data, go, monkeypatch):
    plain_client = METHODS["fedavg"].client

    def client(self, work):
        update = plain_client(self, work)
        return replace(update, weights=update.weights * float("nan")) if work.client == "b" else update

    monkeypatch.setattr(METHODS["fedavg"], "client", client)
    data = make_tiny_data(("a", "b", "c", "d", "held"))
    plain, _ = go(make_experiment(data=data), "plain", rounds=1)
    protection = make_protection("secure-sum", SUMMED["protect_settings"])
    experiment = replace(make_experiment(data=data), protection=protection)
    summed, records = go(experiment, "summed", rounds=1)
    assert torch.allclose(summed.weights, plain.weights, atol=1e-6)
    (fault,) = (record for record in records.entries if record["event"] == "fault")
    assert fault["client"] == "b" and "NaN" in fault["reason"]
    (record,) = (record for record in records.entries if record["event"] == "round")
    lines = {line["kind"]: line["from"] for line in record["left"]}
    assert record["clients"] == ["a", "c", "d"]
    assert lines["model weights"] == "all", "what is withheld stayed"
    assert lines["public keys"] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("ppdg", "uses every client's own update"),
        ("csac", "uses every client's own update"),
        ("mdfl", "class feature sums and class counts of every client"),
        ("fednova", "number of effective steps of every client"),
        ("cwt", "from one client to the next"),
        ("deepall", "pools the data itself"),
    ],
)
def test_other_methods_are_refused_with_the_reason(method, reason, tmp_path):
    with pytest.raises(
        UsageError, match=rf"does not support {method}: .*{reason}.*It supports .*fedavg.*scaffold"
    ):
        unseen.train("rotated-digits", hold_out="75", method=method, protect="secure-sum", out=tmp_path / "x")


def test_a_method_that_sends_only_its_state_is_served_whatever_its_settings():
    protection = make_protection("secure-sum")
    assert "fedbn" in SERVED and "feddg" not in SERVED
    facts = make_method("fedbn", {"share_statistics": False}).traits
    assert (
        facts.in_state == ("model weights without batch norm",) and protection.incompatibility(facts) is None
    )


def test_two_clients_are_too_few(tmp_path):
    with pytest.raises(UsageError, match=r"at least 3 clients.*subtract its own"):
        unseen.train(
            "rotated-digits", hold_out="75", sources=["0", "15"], protect="secure-sum", out=tmp_path / "x"
        )
    with pytest.raises(UsageError, match="'threshold' of secure-sum is 9"):
        unseen.train(
            "rotated-digits",
            hold_out="75",
            protect="secure-sum",
            protect_settings={"threshold": 9},
            out=tmp_path / "x",
        )
