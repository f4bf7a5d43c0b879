"""Averages over rounds against torch's own class, literal loops, and SWAD's algorithm as printed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from unseen.aggregation import AVERAGES, judged_weights, make_average
from unseen.aggregation.model_averaging import Average
from unseen.errors import UsageError
from unseen.models import FlatState, Kind

EVERY = [
    ("ema", {"beta": 0.7}),
    ("swa", {"start": 0.3, "every": 2}),
    ("window", {"size": 3}),
    ("swad", {"n_converge": 2, "n_tolerance": 3, "tolerance": 1.2}),
]


def weights_of_rounds(count: int, *, size: int = 7, seed: int = 0) -> Tensor:
    """Random weights, one row per round; a mean of floats keeps about six digits."""
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def play(average: Average, rows: Tensor, losses: Sequence[float] = (), every: int = 1) -> list[Tensor]:
    """Judge after every evaluation, as the server loop does; the state passes through bytes in between."""
    state: dict[str, Tensor] = {}
    judged = []
    for number, weights in enumerate(rows, start=1):
        average.collect(state, weights, round=number, rounds=len(rows))
        if number % every == 0 or number == len(rows):
            if average.needs_loss:
                average.observe(state, losses[len(judged)])
            mean = average.mean(state)
            judged.append(weights if mean is None else mean)
        state = load(save({key: value.contiguous().clone() for key, value in state.items()}))
    return judged


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-6)


# the four averages against literal versions


@given(beta=st.floats(0, 0.99), rounds=st.integers(1, 12))
def test_ema_is_the_bias_corrected_sum(beta, rounds):
    rows = weights_of_rounds(rounds)
    moving = torch.zeros(rows.shape[1], dtype=torch.float64)
    for number, judged in enumerate(play(make_average("ema", {"beta": beta}), rows), start=1):
        moving = beta * moving + (1 - beta) * rows[number - 1].double()
        assert_close(judged, moving / (1 - beta**number))


def test_swa_is_torchs_own_average_with_the_same_rounds():
    module = nn.Linear(3, 2)
    rows = weights_of_rounds(10, size=8)
    theirs = AveragedModel(module)
    judged = play(make_average("swa", {"start": 0.55, "every": 2}), rows)
    for number, weights in enumerate(rows, start=1):
        nn.utils.vector_to_parameters(weights, module.parameters())
        if number in (6, 8, 10):
            theirs.update_parameters(module)
        expected = nn.utils.parameters_to_vector(theirs.module.parameters()) if number >= 6 else weights
        assert_close(judged[number - 1], expected.detach())


@pytest.mark.parametrize(
    ("start", "rounds", "first"), [(0.75, 10, 8), (0.75, 4, 4), (0.75, 1, 1), (0.0, 5, 1)]
)
def test_swa_starts_after_its_fraction_of_the_rounds(start, rounds, first):
    rows = weights_of_rounds(rounds)
    for number, judged in enumerate(play(make_average("swa", {"start": start}), rows), start=1):
        assert_close(
            judged, rows[min(first, number) - 1 : number].mean(dim=0) if number >= first else rows[number - 1]
        )


@given(size=st.integers(1, 6), rounds=st.integers(1, 12))
def test_window_is_the_mean_of_the_last_rounds(size, rounds):
    rows = weights_of_rounds(rounds)
    for number, judged in enumerate(play(make_average("window", {"size": size}), rows), start=1):
        assert_close(judged, rows[max(0, number - size) : number].mean(dim=0))


def literal_swad(losses: Sequence[float], *, n_s: int, n_e: int, r: float) -> tuple[int, int] | None:
    """Algorithm 1 of the paper, line by line, with iterations counted from 1; None if t_s stays 0."""
    val = [math.nan, *losses]
    last = len(losses)
    t_s, t_e, limit = 0, last, math.nan
    for i in range(1, last + 1):
        if t_s == 0:
            if i >= n_s and val[i - n_s + 1] == min(val[i - k] for k in range(n_s)):
                t_s = i - n_s + 1
                limit = r / n_s * sum(val[i - k] for k in range(n_s))
        elif i >= n_e and limit < min(val[i - k] for k in range(n_e)):
            t_e = i - n_e
            break
    return None if t_s == 0 else (t_s, t_e)


LOSSES = st.lists(st.sampled_from([0.25, 0.5, 0.625, 0.75, 1.0, 1.125, 2.0]), min_size=1, max_size=24)
"""Values that no limit of the test equals, so that rounding decides nothing."""


@given(losses=LOSSES, n_s=st.integers(1, 4), more=st.integers(0, 3), r=st.sampled_from([1.07, 1.3]))
def test_swad_is_the_papers_algorithm_after_every_evaluation(losses, n_s, more, r):
    """Judged after i evaluations = the algorithm with T = i: an open window ends now, a closed one stays."""
    rows = weights_of_rounds(len(losses))
    average = make_average("swad", {"n_converge": n_s, "n_tolerance": n_s + more, "tolerance": r})
    for number, judged in enumerate(play(average, rows, losses), start=1):
        window = literal_swad(losses[:number], n_s=n_s, n_e=n_s + more, r=r)
        expected = rows[number - 1] if window is None else rows[window[0] - 1 : window[1]].mean(dim=0)
        assert_close(judged, expected)


def test_swad_counts_every_round_between_evaluations_the_same():
    losses, every = [0.9, 0.4, 0.5, 0.45, 0.9, 0.9, 0.95, 0.2], 3
    rows = weights_of_rounds(23)
    judged = play(make_average("swad", {"n_converge": 2, "n_tolerance": 2}), rows, losses, every)
    assert literal_swad(losses, n_s=2, n_e=2, r=1.3) == (2, 4)
    assert_close(judged[3], rows[3:12].mean(dim=0))
    assert_close(judged[-1], rows[3:12].mean(dim=0))


def test_swad_says_what_its_window_is_and_when_it_is_closed():
    average, state = make_average("swad", {"n_converge": 2, "n_tolerance": 2}), {}
    seen = []
    for number, loss in enumerate([0.9, 0.4, 0.5, math.nan, 2.0], start=1):
        average.collect(state, torch.full((2,), float(number)), round=number, rounds=9)
        average.observe(state, loss)
        seen.append((average.facts(state), average.end(state)))
    assert seen[1] == ({"loss": 0.4}, "")
    window = {"first": 2, "rounds": 2, "last": 3, "limit": pytest.approx(1.3 * 0.45)}
    assert seen[2] == ({"loss": 0.5, **window}, "")
    assert seen[3] == ({"loss": math.inf, **window, "last": 4, "rounds": 3}, "")
    assert seen[4][0] == {"loss": 2.0, **window}
    assert seen[4][1] == "SWAD's window, rounds 2 to 3, is closed"
    assert average.mean(state).tolist() == [2.5, 2.5]
    assert sum(value.numel() for value in state.values()) < 12, "what is not needed any more is dropped"


# all averages


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_equal_weights_are_their_own_average(name, settings):
    rows = weights_of_rounds(1).expand(8, -1)
    for judged in play(make_average(name, settings), rows, [1.0] * 8):
        assert_close(judged, rows[0])


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_an_average_is_linear_in_the_weights(name, settings):
    one, other = weights_of_rounds(8), weights_of_rounds(8, seed=1)
    losses = [0.9, 0.5, 0.6, 0.55, 0.9, 0.9, 0.9, 0.9]
    play_rows = [
        play(make_average(name, settings), rows, losses)[-1] for rows in (one, other, 2 * one - other)
    ]
    assert_close(play_rows[2], 2 * play_rows[0] - play_rows[1])
    assert not torch.allclose(play_rows[0], one[-1])


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_weights_that_were_collected_are_left_alone(name, settings):
    rows = weights_of_rounds(8)
    before = rows.clone()
    play(make_average(name, settings), rows, [0.9, 0.5, 0.6, 0.55, 0.9, 0.9, 0.9, 0.9])
    assert torch.equal(rows, before)


@pytest.mark.parametrize(("name", "settings"), EVERY)
def test_float_buffers_are_averaged_and_integer_buffers_are_the_newest(name, settings):
    flat = FlatState(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    layout = flat.layout
    statistics, counters = layout.extent(Kind.FLOAT_BUFFER), layout.extent(Kind.INTEGER_BUFFER)
    average, state = make_average(name, settings), {}
    rows = weights_of_rounds(6, size=layout.size)
    rows[:, counters] = 10.0 * torch.arange(1, 7)[:, None]
    for number, weights in enumerate(rows, start=1):
        average.collect(state, weights, round=number, rounds=6)
        average.observe(state, 1.0)
    judged = judged_weights(average, state, rows[-1], layout=layout)
    assert judged[counters].tolist() == [60.0]
    assert torch.equal(judged[statistics], average.mean(state)[statistics])
    assert not torch.allclose(judged[statistics], rows[-1, statistics])


def test_without_an_average_the_newest_weights_are_judged_themselves():
    newest, layout = weights_of_rounds(1)[0], FlatState(nn.Linear(2, 2)).layout
    assert judged_weights(make_average("none"), {}, newest, layout=layout) is newest
    assert judged_weights(make_average("swa"), {}, newest, layout=layout) is newest


def test_every_average_is_registered_with_a_description():
    assert list(AVERAGES) == ["ema", "none", "swa", "swad", "window"]
    assert all(AVERAGES[name].__doc__ for name in AVERAGES)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("ema", {"beta": 1}, "'beta' of the average must be at least 0 and below 1, not 1"),
        ("swa", {"start": 1}, "'start' of the average must be"),
        ("swa", {"every": 0}, "'every' of the average must be at least 1"),
        ("window", {"size": 0}, "'size' of the average must be at least 1"),
        (
            "swad",
            {"n_tolerance": 2},
            r"'n_tolerance' of the average must be at least n_converge \(3\), not 2",
        ),
        ("swad", {"n_converge": 0}, "'n_converge'"),
        ("swad", {"tolerance": 0.5}, "'tolerance'"),
        ("swad", {"patience": 3}, "unknown setting of average 'swad': 'patience'"),
        ("none", {"beta": 3}, "average 'none' has no settings"),
        ("swap", {}, "unknown average 'swap'"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(name, settings, said):
    with pytest.raises(UsageError, match=said) as error:
        make_average(name, json.loads(json.dumps(settings)))
    assert "\n" not in str(error.value)
