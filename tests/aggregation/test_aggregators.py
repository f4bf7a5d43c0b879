"""Robust aggregators against slow literal versions, and what they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from unseen.aggregation import AGGREGATORS, MergingPlan, StepLimit, Updates, make_aggregator
from unseen.aggregation.aggregators import bound_shares
from unseen.errors import UnseenError, UsageError
from unseen.models import Kind, Layout

Real = npt.NDArray[np.float64]
ROBUST = sorted(set(AGGREGATORS) - {"mean"})


def literal_median(rows: Real) -> Real:
    return np.median(rows, axis=0)


def literal_trimmed(rows: Real, cut: int) -> Real:
    return np.sort(rows, axis=0)[cut : len(rows) - cut].mean(axis=0)


def literal_scores(rows: Real, liars: int) -> list[float]:
    found = []
    for one, row in enumerate(rows):
        others = sorted(float(((row - rows[two]) ** 2).sum()) for two in range(len(rows)) if two != one)
        found.append(sum(others[: max(len(rows) - liars - 2, 1)]))
    return found


def literal_geometric_median(rows: Real) -> Real:
    point = rows.mean(axis=0)
    for _ in range(3_000):
        weights = 1 / np.maximum(np.linalg.norm(rows - point, axis=1), 1e-12)
        point = weights @ rows / weights.sum()
    return point


@st.composite
def matrices(draw: st.DrawFn) -> Tensor:
    clients, numbers = draw(st.integers(3, 11)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    rows = torch.randn(clients, numbers, generator=generator) * draw(st.sampled_from([1e-3, 1.0, 50.0]))
    return rows.round(decimals=1) if draw(st.booleans()) else rows


def combined(name: str, rows: Tensor, **settings: Any) -> Tensor:
    return make_aggregator(name, settings).combine(rows, torch.zeros(rows.shape[1])).vector


@given(matrices())
def test_the_median_and_the_trimmed_mean_are_those_of_sorted_columns(rows: Tensor) -> None:
    exact = rows.double().numpy()
    assert np.allclose(combined("median", rows).numpy(), literal_median(exact), rtol=1e-5, atol=1e-6)
    for trim in (0.1, 0.2, 0.4):
        cut = min(max(int(trim * len(rows)), 1), (len(rows) - 1) // 2)
        found = combined("trimmed-mean", rows, trim=trim).numpy()
        assert np.allclose(found, literal_trimmed(exact, cut), rtol=1e-5, atol=1e-5)


@given(matrices(), st.integers(0, 4))
def test_krum_and_multi_krum_choose_the_clients_with_the_smallest_scores(rows: Tensor, liars: int) -> None:
    liars = min(liars, (len(rows) - 3) // 2)
    scores = np.array(literal_scores(rows.double().numpy(), liars))
    ours = make_aggregator("krum", {"liars": liars}).scores(rows, torch.zeros(rows.shape[1]))  # type: ignore[attr-defined]
    assert np.allclose(ours.numpy(), scores, rtol=1e-6, atol=1e-9)
    best = scores.argsort(kind="stable")
    apart = np.diff(np.sort(scores))
    if (apart > 1e-6 * scores.max()).all():
        assert torch.equal(combined("krum", rows, liars=liars), rows[best[0]])
        keep = len(rows) - liars
        mean = rows[best[:keep].tolist()].double().mean(0).float()
        assert torch.allclose(combined("multi-krum", rows, liars=liars), mean, rtol=1e-4, atol=1e-5)


@settings(max_examples=30)
@given(matrices())
def test_the_geometric_median_has_the_smallest_sum_of_distances(rows: Tensor) -> None:
    exact = rows.double().numpy()
    total = lambda point: float(np.linalg.norm(exact - point, axis=1).sum())  # noqa: E731
    found = total(combined("geometric-median", rows).double().numpy())
    assert found <= total(literal_geometric_median(exact)) * (1 + 1e-4) + 1e-9
    assert found <= min(total(row) for row in exact) * (1 + 1e-4) + 1e-9
    assert found <= total(exact.mean(0)) * (1 + 1e-4) + 1e-9


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_equal_updates_give_the_mean_whatever_the_rule(name: str) -> None:
    row = torch.randn(1000)
    rows = row.repeat(6, 1)
    assert torch.allclose(combined(name, rows), row, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("size", [1e3, 1e30])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_one_liar_of_five_moves_no_robust_rule_far(name: str, size: float, place: int) -> None:
    generator = torch.Generator().manual_seed(3)
    honest = torch.randn(5, 500, generator=generator)
    lying = honest.clone()
    lying[place] = size
    moved = float((combined(name, lying) - combined(name, honest)).norm())
    spread = float((honest - honest.mean(0)).norm(dim=1).max())
    assert moved < 2 * spread
    assert float((combined("mean", lying) - honest.mean(0)).norm()) > 10 * spread


# whole states


class _Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)


def updates(rows: Tensor, **changes: Any) -> Updates:
    layout = Layout.of(_Small())
    clients = tuple("abcdefgh"[: len(rows)])
    count = torch.tensor([10.0 * (place + 1) for place in range(len(rows))], dtype=torch.float64)
    values: dict[str, Any] = {"samples": count, "steps": count, "extras": ({},) * len(rows)}
    return Updates(clients=clients, rows=rows, layout=layout, **(values | changes))


def states(clients: int = 5) -> Tensor:
    layout = Layout.of(_Small())
    rows = torch.randn(clients, layout.size, generator=torch.Generator().manual_seed(1))
    rows[:, layout.extent(Kind.FLOAT_BUFFER)] = rows[:, layout.extent(Kind.FLOAT_BUFFER)].abs()
    rows[:, layout.extent(Kind.INTEGER_BUFFER)] = torch.arange(3, 3 + clients)[:, None].float()
    return rows


@pytest.mark.parametrize("name", ROBUST)
def test_statistics_follow_the_rule_and_counters_are_a_median(name: str) -> None:
    rows = states()
    rows[4] = 1e9
    plan = MergingPlan(make_aggregator(name))
    bound, _ = plan.bind(updates(rows), torch.zeros(rows.shape[1]), "abcde")
    merged = bound.mean(bound.samples)
    layout = bound.layout
    assert float(merged[layout.extent(Kind.INTEGER_BUFFER)]) == 5
    statistics = merged[layout.extent(Kind.FLOAT_BUFFER)]
    assert bool((statistics >= 0).all())
    assert float(merged[: layout.extent(Kind.INTEGER_BUFFER).start].abs().max()) < 100
    plan.require_used(bound, method="fedavg")


def test_weights_by_samples_do_not_reach_a_robust_rule() -> None:
    """D4: a weight that a site states itself must not decide."""
    rows = states()
    plan, zero = MergingPlan(make_aggregator("median")), torch.zeros(rows.shape[1])
    one, _ = plan.bind(updates(rows), zero, "abcde")
    other, _ = plan.bind(updates(rows), zero, "abcde")
    huge = one.samples.clone()
    huge[0] = 1e18
    assert torch.equal(one.mean(one.samples), other.mean(huge))


def test_a_plan_that_bounds_nothing_leaves_the_mean_as_it_was_to_the_bit() -> None:
    rows = states()
    plain = updates(rows)
    bound, acted = MergingPlan().bind(plain, torch.zeros(rows.shape[1]), "abcde")
    assert bound is plain
    assert acted == {}


def test_a_method_that_does_not_ask_for_the_mean_is_refused() -> None:
    rows = states()
    plan = MergingPlan(make_aggregator("krum"))
    bound, _ = plan.bind(updates(rows), torch.zeros(rows.shape[1]), "abcde")
    with pytest.raises(UsageError, match="does not average"):
        plan.require_used(bound, method="mine")


def test_too_few_clients_end_with_one_line() -> None:
    rows = states(4)
    plan = MergingPlan(make_aggregator("krum", {"liars": 1}))
    bound, _ = plan.bind(updates(rows), torch.zeros(rows.shape[1]), "abcd")
    with pytest.raises(UnseenError, match=r"4 clients sent a usable update.*at least 5.*--resume"):
        bound.mean(bound.samples)


# largest weight


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=9),
    st.floats(0.05, 1.0),
    st.lists(st.integers(0, 3), min_size=9, max_size=9),
)
def test_no_site_weighs_more_than_the_bound(weights: list[float], largest: float, sites: list[int]) -> None:
    shares = torch.tensor(weights, dtype=torch.float64)
    shares = shares / shares.sum()
    groups = tuple(str(site) for site in sites[: len(weights)])
    bounded = bound_shares(shares, groups, largest=largest)
    assert float(bounded.sum()) == pytest.approx(1)
    limit = max(largest, 1 / len(set(groups)))
    for group in set(groups):
        inside = torch.tensor([each == group for each in groups])
        assert float(bounded[inside].sum()) <= limit + 1e-9
        ratio = bounded[inside] / shares[inside]
        assert torch.allclose(ratio, ratio[0].expand_as(ratio))
    if all(float(shares[[each == group for each in groups]].sum()) <= largest for group in set(groups)):
        assert torch.equal(bounded, shares)


def test_a_bounded_weight_acts_on_the_mean_and_is_recorded() -> None:
    rows = states(3)
    samples = torch.tensor([98.0, 1.0, 1.0], dtype=torch.float64)
    bound, acted = MergingPlan(max_weight=0.5).bind(
        updates(rows, samples=samples), torch.zeros(rows.shape[1]), "abc"
    )
    found = bound.mean(samples)
    trained = bound.layout.extent(Kind.PARAMETER)
    expected = torch.tensor([0.5, 0.25, 0.25]) @ rows
    assert torch.allclose(found[trained], expected[trained], atol=1e-6)
    assert acted == {"weight_before_bound": {"a": pytest.approx(0.98)}}


# clipped steps


@pytest.mark.parametrize(("limit", "longest"), [("2.5", 2.5), ("1.5x", None)])
def test_long_steps_are_shortened_in_place_and_recorded(limit: str, longest: float | None) -> None:
    layout, start = Layout.of(_Small()), torch.ones(Layout.of(_Small()).size)
    numbers = slice(0, layout.extent(Kind.INTEGER_BUFFER).start)
    rows = states()
    steps = torch.nn.functional.normalize(torch.randn(5, numbers.stop), dim=1)
    rows[:, numbers] = start[numbers] + steps * torch.tensor([1.0, 2.0, 2.0, 2.0, 1000.0])[:, None]
    before = rows.clone()
    longest = longest or 1.5 * 2.0
    _, acted = MergingPlan(limit=StepLimit.parse(limit)).bind(updates(rows), start, "abcde")
    norms = (rows - start)[:, numbers].norm(dim=1)
    assert norms.tolist() == pytest.approx([1, 2, 2, 2, longest], rel=1e-4)
    assert torch.equal(rows[:4], before[:4]), "short steps stay as they are to the bit"
    assert torch.allclose(rows[4, numbers], start[numbers] + steps[4] * longest, atol=1e-4)
    assert acted["clipped_steps"] == {"e": pytest.approx(1000, rel=1e-4)}
    assert acted["largest_step"] == pytest.approx(longest, rel=1e-4)


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf", "2y", ""])
def test_a_limit_that_is_no_norm_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--clip-update must be a norm"):
        StepLimit.parse(text)
