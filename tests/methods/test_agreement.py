"""AgrSum and AgrRand against their definition, coordinate by coordinate."""

from __future__ import annotations

import pytest
import torch
from literal_clients import server_work
from torch import nn

from unseen.aggregation import ServerWork, weighted_mean
from unseen.methods import make_method
from unseen.models import FlatState, Kind

MODULE = nn.Sequential(nn.Conv2d(1, 8, 5), nn.BatchNorm2d(8), nn.Linear(8, 90))
METHODS = ("agrsum", "agrrand")


def make_work(clients: int = 3, *, round: int = 1) -> ServerWork:
    """Random moves; the last ten parameters are moved by nobody."""
    flat = FlatState(MODULE)
    weights = flat.read()
    moves = 0.1 * torch.randn(clients, len(weights), generator=torch.Generator().manual_seed(4))
    trained = flat.layout.extent(Kind.PARAMETER)
    moves[:, trained.stop - 10 : trained.stop] = 0
    rows = weights + moves
    rows[:, flat.layout.extent(Kind.INTEGER_BUFFER)] = 7
    return server_work(flat, rows, round=round)


def moves_of(work: ServerWork) -> torch.Tensor:
    trained = work.updates.layout.extent(Kind.PARAMETER)
    return work.updates.rows[:, trained].double() - work.weights[trained].double()


def step_of(method: str, work: ServerWork, **settings: str) -> torch.Tensor:
    trained = work.updates.layout.extent(Kind.PARAMETER)
    return (make_method(method, settings).server(work)[trained].double() - work.weights[trained]).double()


def agreeing(moves: torch.Tensor) -> list[bool]:
    """Whether all signs agree, literally."""
    return [len({float(value.sign()) for value in column}) == 1 for column in moves.t()]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("clients", [2, 3, 5])
def test_agrsum_equals_the_literal_rule(clients, reduction):
    work = make_work(clients)
    moves = moves_of(work)
    total = moves.mean(dim=0) if reduction == "mean" else moves.sum(dim=0)
    literal = [float(value) if same else 0.0 for value, same in zip(total, agreeing(moves), strict=True)]
    found = step_of("agrsum", work, reduction=reduction)
    torch.testing.assert_close(found, torch.tensor(literal, dtype=torch.float64), rtol=1e-4, atol=1e-6)
    moved = sum(agreeing(moves)) - 10
    assert work.diagnostics["agreeing_fraction"] == pytest.approx(moved / (moves.shape[1] - 10))
    assert 0 < moved < moves.shape[1] - 10


def test_agrrand_is_agrsum_plus_noise_of_the_agreed_size_where_signs_differ():
    work, same = make_work(), torch.tensor(agreeing(moves_of(make_work())))
    summed, filled = step_of("agrsum", make_work()), step_of("agrrand", work)
    torch.testing.assert_close(filled[same], summed[same], rtol=0, atol=0)
    assert not summed[~same].any()
    noise = filled[~same]
    changed = same.clone()
    changed[-10:] = False
    scale = summed[changed].abs().mean()
    assert work.diagnostics["noise_scale"] == pytest.approx(float(scale), rel=1e-5)
    assert len(noise) > 500 and noise.count_nonzero() == len(noise)
    assert float(noise.std() / scale) == pytest.approx(1, abs=0.1)
    assert abs(float(noise.mean() / scale)) < 0.15


def test_noise_is_drawn_anew_every_round_and_the_same_again():
    first, again, later = (step_of("agrrand", make_work(round=number)) for number in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, later)


@pytest.mark.parametrize("method", METHODS)
def test_masking_changes_the_outcome_and_spares_what_nobody_moved(method):
    work = make_work()
    step, mean = step_of(method, work), moves_of(work).mean(dim=0)
    assert (step - mean).abs().max() > 0.01
    assert not step[-10:].any()


@pytest.mark.parametrize("method", METHODS)
def test_buffers_are_averaged(method):
    work = make_work()
    layout = work.updates.layout
    merged = make_method(method).server(work)
    mean = weighted_mean(work.updates.rows, torch.ones(3), layout=layout)
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        torch.testing.assert_close(merged[layout.extent(kind)], mean[layout.extent(kind)])


@pytest.mark.parametrize("method", METHODS)
def test_one_client_is_taken_over_to_the_bit(method):
    work = make_work(1)
    assert torch.equal(make_method(method).server(work), work.updates.rows[0])


def test_total_disagreement_moves_nothing_and_gives_no_nan():
    for method in METHODS:
        work = make_work(2)
        work.updates.rows[1] = 2 * work.weights - work.updates.rows[0]
        assert not step_of(method, work).any()
        assert work.diagnostics["agreeing_fraction"] == 0
