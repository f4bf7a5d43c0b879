"""PCGrad's server half against algorithm 1 on whole vectors."""

from __future__ import annotations

import pytest
import torch
from literal_clients import server_work
from torch import nn

from unseen.aggregation import ServerWork, draw_visit_order, weighted_mean
from unseen.methods import make_method
from unseen.models import FlatState, Kind

MODULE = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3))


def make_work(clients: int = 5, *, agree: bool = False) -> ServerWork:
    flat = FlatState(MODULE)
    weights = flat.read()
    moves = 0.1 * torch.randn(clients, len(weights), generator=torch.Generator().manual_seed(2))
    rows = weights + (moves.abs() if agree else moves - moves.mean(dim=0))
    rows[:, flat.layout.extent(Kind.INTEGER_BUFFER)] = 7
    return server_work(flat, rows)


def literal_pcgrad(work: ServerWork) -> torch.Tensor:
    """Algorithm 1: the projected vectors, in float64, on the parameters."""
    trained = work.updates.layout.extent(Kind.PARAMETER)
    originals = work.updates.rows[:, trained].double() - work.weights[trained].double()
    hats = list(originals.clone())
    order = draw_visit_order(work.updates.clients, work.generator("order of projection"))
    for i in order.clients:
        for j in order.partners[i]:
            inner = hats[i] @ originals[j]
            if i != j and inner < 0:
                hats[i] = hats[i] - inner / originals[j].square().sum() * originals[j]
    return torch.stack(hats)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("clients", [2, 5, 12])
def test_equals_the_literal_algorithm(clients, reduction):
    work = make_work(clients)
    layout = work.updates.layout
    trained = layout.extent(Kind.PARAMETER)
    merged = make_method("pcgrad", {"reduction": reduction}).server(work)
    vectors = literal_pcgrad(work)
    step = vectors.mean(dim=0) if reduction == "mean" else vectors.sum(dim=0)
    literal = work.weights[trained].double() + step
    torch.testing.assert_close(merged[trained].double(), literal, rtol=1e-5, atol=1e-6)
    mean = weighted_mean(work.updates.rows, torch.ones(clients), layout=layout)
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        torch.testing.assert_close(merged[layout.extent(kind)], mean[layout.extent(kind)])


def test_projection_acts_on_conflicts_only():
    work, agreeing = make_work(), make_work(agree=True)
    merged, untouched = (make_method("pcgrad").server(each) for each in (work, agreeing))
    ones = torch.ones(5)
    mean = weighted_mean(work.updates.rows, ones, layout=work.updates.layout)
    assert (merged - mean).abs().max() > 1e-2
    assert work.diagnostics["conflicting_pairs"] > 0 and work.diagnostics["projection_steps"] > 0
    torch.testing.assert_close(
        untouched, weighted_mean(agreeing.updates.rows, ones, layout=agreeing.updates.layout)
    )
    assert agreeing.diagnostics["projection_steps"] == 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_client_is_taken_over_to_the_bit(reduction):
    work = make_work(1, agree=True)
    assert torch.equal(make_method("pcgrad", {"reduction": reduction}).server(work), work.updates.rows[0])


def test_a_client_that_did_not_move_is_no_division_by_zero():
    work = make_work()
    work.updates.rows[2] = work.weights
    assert torch.isfinite(make_method("pcgrad").server(work)).all()
