"""Batch order under sealing protections: sums of several runs or attempts give no update (P3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.engine import RoundStart, SerialEngine
from unseen.privacy import make_protection
from unseen.runs.checkpoint import StateStore

CLIENTS = ("a", "b", "c", "d")


def sums_of_leave_one_out(make_experiment, make_tiny_data, go, **settings):
    """Run one round with each client held out in turn; return the sums that the server opened."""
    found = {}
    for left in CLIENTS:
        data = make_tiny_data((*(name for name in CLIENTS if name != left), "held"))
        experiment = replace(make_experiment(data=data), protection=make_protection("secure-sum", settings))
        point, _ = go(experiment, f"without {left} {settings}", rounds=1, selection="last")
        found[left] = point.weights.double() * 3
    return found


def update_of(make_experiment, make_tiny_data, client):
    """Return a client's own update of a plain run, and the weights that it started from."""
    experiment = make_experiment(data=make_tiny_data((*CLIENTS, "held")))
    engine = SerialEngine(experiment, StateStore("unused"))
    start = engine.workspace.flat.read()
    rows, _ = engine.train([CLIENTS.index(client)], RoundStart(1, start))
    return rows[0].double(), start.double()


def stolen(sums, client):
    """Solve four sums over three clients each for one of them."""
    return sum(sums.values()) / 3 - sums[client]


def test_sums_of_several_runs_do_not_give_an_update(make_experiment, make_tiny_data, go):
    """P3: leave-one-domain-out with one seed gave every client's first update with relative error 1e-7."""
    true, start = update_of(make_experiment, make_tiny_data, "a")
    exact = stolen(sums_of_leave_one_out(make_experiment, make_tiny_data, go, batch_seed="run"), "a")
    assert float((exact - true).norm() / (true - start).norm()) < 1e-4, "the attack itself works"
    blurred = stolen(sums_of_leave_one_out(make_experiment, make_tiny_data, go), "a")
    assert float((blurred - true).norm() / (true - start).norm()) > 0.1


@pytest.mark.parametrize("protect", ["secure-sum", "encrypted"])
def test_a_repeated_round_gives_another_update(make_experiment, protect):
    """P2, P3: two attempts at a round from the same weights must not give the same update."""
    experiment = make_experiment()
    start = SerialEngine(experiment, StateStore("unused")).workspace.flat.read().clone()
    draws = []
    for settings in ({}, {}, {"batch_seed": "run"}, {"batch_seed": "run"}):
        protection = make_protection(protect, settings)
        seen = []
        workspace = SerialEngine(replace(experiment, protection=protection), StateStore("unused")).workspace
        protection.seal = lambda update, context, seen=seen: (
            seen.append(update.weights.clone()) or replace(update, extras={})
        )
        workspace.train_client(0, {}, RoundStart(1, start), {})
        draws += seen
    assert not torch.equal(draws[0], draws[1]) and torch.equal(draws[2], draws[3])


def test_records_say_where_batch_order_came_from():
    """P3: a run that cannot be repeated to the bit says so, and so does one that can."""
    for protect in ("secure-sum", "encrypted"):
        assert "cannot be repeated to the bit" in make_protection(protect).statement()
        assert "can subtract them" in make_protection(protect, {"batch_seed": "run"}).statement()
