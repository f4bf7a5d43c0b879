"""The hook: a protection sees every step of a round, and nothing leaves a client undeclared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from unseen.errors import UnseenError, UsageError
from unseen.hparams import Settings
from unseen.methods import METHODS, make_method
from unseen.privacy import PROTECTIONS, Protection, make_protection
from unseen.registry import PLUGINS_VARIABLE


class Halving(Protection[Settings]):
    """Sends half the weights, counts in both memories, and lets the server double them again."""

    name = "halving"
    summary = "for tests"
    sends = ("a count",)

    def before_training(self, work, context):
        assert work.client == context.client and torch.equal(context.start, work.start)

    def seal(self, update, context):
        assert torch.equal(context.received["round"], torch.tensor([float(context.round)]))
        context.state["rounds"] = context.state.get("rounds", torch.zeros(1)) + 1
        return replace(update, weights=update.weights / 2)

    def answer(self, message, context):
        if context.client in ("b",):
            raise UnseenError("b does not answer")
        return {"a count": context.state["rounds"] + message["plus"]}

    def begin(self, context):
        context.state["rounds"] = context.state.get("rounds", torch.zeros(1)) + 1
        return {"round": torch.tensor([float(context.round)])}

    def finish(self, context, received, rows):
        answers = context.ask({client: {"plus": torch.ones(1)} for client in context.clients})
        assert {client: int(said["a count"]) for client, said in answers.items()} == {
            "a": context.round + 1,
            "c": context.round + 1,
        }
        return super().finish(context, received, rows * 2)

    def privacy_spent(self, state):
        return {"rounds": int(state["rounds"])}


class Chatty(Halving):
    sends = ()


def with_protection(experiment, kind):
    return replace(experiment, protection=kind(Settings()))


def test_both_halves_are_called_and_remember(make_experiment, go):
    plain, plain_records = go(make_experiment(), "plain")
    run, records = go(with_protection(make_experiment(), Halving), "halved")
    assert torch.equal(run.weights, plain.weights)
    last = [record for record in records.entries if record["event"] == "round"][-1]
    assert last["protection"] == {"rounds": 2} and "protection" not in plain_records.entries[0]
    faults = [record for record in records.entries if record["event"] == "fault"]
    assert [(fault["client"], fault["reason"]) for fault in faults] == [("b", "b does not answer")] * 2
    (line,) = (line for line in last["left"] if line["kind"] == "a count")
    assert line["from"] == ["a", "c"] and line["bytes"] == 4


def test_memory_survives_a_resumed_run(make_experiment, go):
    whole, _ = go(with_protection(make_experiment(), Halving), "whole", rounds=3)
    go(with_protection(make_experiment(), Halving), "parts", rounds=1)
    resumed, records = go(with_protection(make_experiment(), Halving), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)
    assert records.entries[-2]["protection"] == {"rounds": 3}


def test_an_undeclared_answer_stops_the_run(make_experiment, go):
    with pytest.raises(ValueError, match=r"'halving' sends.*a count.*without declaring"):
        go(with_protection(make_experiment(), Chatty))


def test_what_left_is_measured(make_experiment, go):
    checkpoint, records = go(make_experiment("scaffold"), rounds=1)
    (record,) = (record for record in records.entries if record["event"] == "round")
    lines = {line["kind"]: line for line in record["left"]}
    assert set(lines) == {
        "model weights",
        "number of samples",
        "training loss and counts of steps and samples",
        "change of the control variate",
        "diagnostics",
    }
    assert all(line["from"] == "all" and line["protected"] == "not protected" for line in lines.values())
    assert lines["model weights"]["bytes"] == checkpoint.weights.nbytes
    assert lines["model weights"]["values"] == len(checkpoint.weights)
    assert lines["diagnostics"]["values"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extras": {"secret": torch.ones(2)}}, r"fedavg sends \['secret'\] without declaring"),
        ({"extras": {"model weights": torch.ones(2)}}, r"fedavg sends \['model weights'\] without declaring"),
        ({"diagnostics": {"all": [[0.0] * 50] * 50}}, "2500 numbers as diagnostics"),
    ],
)
def test_undeclared_values_stop_the_run(change, message, make_experiment, go, monkeypatch):
    plain = METHODS["fedavg"].client
    monkeypatch.setattr(METHODS["fedavg"], "client", lambda self, work: replace(plain(self, work), **change))
    with pytest.raises(ValueError, match=message):
        go(make_experiment())


@pytest.mark.parametrize("method", list(METHODS))
def test_methods_declare_what_travels_in_their_state(method):
    facts = make_method(method).traits
    if facts.topology != "pooled" and method != "zero-shot":
        assert facts.in_state and set(facts.in_state) <= set(facts.sends)
    assert set(facts.merges) <= set(facts.extra_kinds)
    assert facts.weighting in ("samples", "uniform")


def test_protections_are_found_by_name():
    assert "none" in list(PROTECTIONS)
    with pytest.raises(UsageError, match="unknown protection 'nonee'"):
        make_protection("nonee")
    with pytest.raises(UsageError, match="protection 'none' has no settings"):
        make_protection("none", {"x": 1})


PLUGIN = '''
from dataclasses import dataclass, replace

from unseen.hparams import Settings, setting
from unseen.privacy import Protection, register_protection


@dataclass(frozen=True)
class RoundingSettings(Settings):
    digits: int = setting(3, "decimal digits kept")


@register_protection
class Rounding(Protection[RoundingSettings]):
    """Weights rounded before they are sent."""

    name = "rounding"
    summary = "rounded weights"

    def seal(self, update, context):
        return replace(update, weights=update.weights.round(decimals=self.settings.digits))

    def statement(self):
        return "Weights were rounded."
'''


def test_a_plugin_file_adds_a_protection_also_for_worker_processes(tmp_path):
    plugin, run = tmp_path / "rounding.py", tmp_path / "run"
    plugin.write_text(PLUGIN)
    options = "--hold-out 75 --rounds 1 --batches-per-epoch 1 --workers 2"
    options += " --protect rounding --protect-set digits=1"
    command = [sys.executable, "-m", "unseen", "train", "rotated-digits", *options.split(), "--out", str(run)]
    environment = {**os.environ, PLUGINS_VARIABLE: str(plugin)}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads((run / "result.json").read_text())
    assert result["protection"] == {"name": "rounding", "statement": "Weights were rounded."}
