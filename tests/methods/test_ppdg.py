"""PPDG's server half against algorithm 1 on whole vectors, and what its settings do."""

from __future__ import annotations

import pytest
import torch
from literal_clients import server_work
from torch import nn

from unseen.aggregation import ServerWork, draw_visit_order, weighted_mean
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.models import FlatState, Kind

MODULE = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3))


def make_work(clients: int = 5, *, conflict: float = 1.0, seed: int = 0, round: int = 1) -> ServerWork:
    """A server's round: random moves whose mean is taken out as far as `conflict` says."""
    generator = torch.Generator().manual_seed(seed)
    flat = FlatState(MODULE)
    weights = flat.read()
    moves = 0.1 * torch.randn(clients, len(weights), generator=generator)
    rows = weights + moves - conflict * moves.mean(dim=0)
    counters = flat.layout.extent(Kind.INTEGER_BUFFER)
    rows[:, counters] = torch.arange(1, clients + 1).float()[:, None]
    return server_work(flat, rows, round=round, seed=seed)


def literal_ppdg(work: ServerWork, *, strength: float, always: bool = False) -> torch.Tensor:
    """Algorithm 1 with g_k = w_k - w, in float64, on the parameters."""
    trained = work.updates.layout.extent(Kind.PARAMETER)
    start = work.weights[trained].double()
    hats = list(work.updates.rows[:, trained].double() - start)
    order = draw_visit_order(work.updates.clients, work.generator("order of alignment"))
    for i in order.clients:
        for j in order.partners[i]:
            if i != j and (always or hats[i] @ hats[j] < 0):
                hats[i] = hats[i] - 2 * strength * (hats[i] - hats[j])
    return start + torch.stack(hats).mean(dim=0)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("strength", [0.001, 0.1, 0.45])
@pytest.mark.parametrize("clients", [1, 2, 5, 12])
def test_equals_the_literal_algorithm(clients, strength, always):
    work = make_work(clients)
    layout = work.updates.layout
    merged = make_method("ppdg", {"strength": strength, "always": always}).server(work)
    literal = literal_ppdg(work, strength=strength, always=always)
    torch.testing.assert_close(merged[layout.extent(Kind.PARAMETER)].double(), literal, rtol=1e-5, atol=1e-6)
    mean = weighted_mean(work.updates.rows, torch.ones(clients), layout=layout)
    for kind in (Kind.FLOAT_BUFFER, Kind.INTEGER_BUFFER):
        torch.testing.assert_close(merged[layout.extent(kind)], mean[layout.extent(kind)])


def test_one_client_is_taken_over_to_the_bit():
    work = make_work(1, conflict=0.0)
    assert torch.equal(make_method("ppdg").server(work), work.updates.rows[0])


def test_alignment_acts_on_conflicts_and_says_so():
    work, plain = make_work(), make_work()
    aligned = make_method("ppdg", {"strength": 0.2}).server(work)
    mean = make_method("ppdg", {"strength": 0.0}).server(plain)
    torch.testing.assert_close(
        mean, weighted_mean(plain.updates.rows, torch.ones(5), layout=plain.updates.layout)
    )
    assert (aligned - mean).abs().max() > 1e-3
    assert work.diagnostics["conflicting_pairs"] > 0 and work.diagnostics["alignment_steps"] > 0
    cosine = torch.tensor(work.diagnostics["cosines"])
    assert cosine.shape == (5, 5) and cosine.diagonal().tolist() == [1.0] * 5 and cosine.min() < 0


def test_without_conflict_it_is_the_mean_and_always_is_not():
    moves = 0.1 + 0.1 * torch.rand(5, 1, generator=torch.Generator().manual_seed(1))
    works = [make_work(), make_work()]
    for work in works:
        tilt = torch.linspace(0.1, 1, len(work.weights)) ** torch.arange(1, 6)[:, None]
        work.updates.rows.copy_(work.weights + moves * tilt)
    kept, always = (
        make_method("ppdg", {"strength": 0.2, "always": value}).server(work)
        for value, work in zip((False, True), works, strict=True)
    )
    mean = weighted_mean(works[0].updates.rows, torch.ones(5), layout=works[0].updates.layout)
    torch.testing.assert_close(kept, mean)
    assert works[0].diagnostics["alignment_steps"] == 0 and works[1].diagnostics["alignment_steps"] == 20
    assert (always - mean).abs().max() > 1e-3


def test_the_order_is_drawn_anew_every_round():
    results = [make_method("ppdg", {"strength": 0.3}).server(make_work(round=number)) for number in (1, 2)]
    assert not torch.allclose(results[0], results[1], atol=1e-4)


def test_statistics_have_no_say_in_conflicts():
    work, other = make_work(), make_work()
    statistics = other.updates.layout.extent(Kind.FLOAT_BUFFER)
    other.updates.rows[:, statistics] *= -1000
    method = make_method("ppdg", {"strength": 0.2})
    trained = work.updates.layout.extent(Kind.PARAMETER)
    assert torch.equal(method.server(work)[trained], method.server(other)[trained])


@pytest.mark.parametrize("strength", [0.5, 0.7, -0.1, float("nan")])
def test_strength_without_proof_of_convergence_is_refused(strength):
    with pytest.raises(UsageError, match=r"below 0\.5.*convergence"):
        make_method("ppdg", {"strength": strength})


def test_line_6_as_printed_moves_from_the_original_vector():
    """With one conflict per client at most, both forms are the same; with more they are not."""
    two, five = make_work(2), make_work(5)
    forms = [make_method("ppdg", {"strength": 0.2, "line_6": form}) for form in ("equation-5", "printed")]
    assert torch.equal(*(method.server(two) for method in forms))
    current, printed = (method.server(five) for method in forms)
    assert (current - printed).abs().max() > 1e-3


def test_half_is_allowed_on_request_with_a_warning_and_trains_as_the_algorithm_says():
    work = make_work(5)
    method = make_method("ppdg", {"strength": 0.5, "unproved": True})
    assert "outside the paper's proof" in method.notes[0]
    trained = work.updates.layout.extent(Kind.PARAMETER)
    literal = literal_ppdg(work, strength=0.5)
    torch.testing.assert_close(method.server(work)[trained].double(), literal, rtol=1e-5, atol=1e-6)
    assert make_method("ppdg", {"strength": 0.4, "unproved": True}).notes == ()
    with pytest.raises(UsageError, match="up to 1"):
        make_method("ppdg", {"strength": 1.0, "unproved": True})


def test_a_run_records_what_alignment_saw(make_experiment, go):
    checkpoint, records = go(make_experiment("ppdg", settings={"strength": 0.2}), rounds=1)
    found = next(entry for entry in records.entries if entry["event"] == "round")["diagnostics"]
    assert torch.isfinite(checkpoint.weights).all()
    assert len(found["cosines"]) == 3 and {"conflicting_pairs", "alignment_steps", "mean_cosine"} <= set(
        found
    )
