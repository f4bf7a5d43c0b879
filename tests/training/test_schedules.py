"""Schedules give the learning rate of every round; the constant one changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from unseen.aggregation import make_average
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.training import LocalTrainingConfig
from unseen.training.schedules import SCHEDULES, make_schedule

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.1, momentum=0.5, rounds=10)


def _rates(optimizer_schedule, rounds=10):
    """Learning rates that one of torch's schedulers gives, one per round."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = optimizer_schedule(optimizer)
    found = []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("name", "settings", "reference"),
    [
        ("constant", {}, lambda o: lr_scheduler.ConstantLR(o, factor=1)),
        ("cosine", {}, lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
        ("cosine", {"final": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.01)),
        ("exponential", {"gamma": 0.8}, lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
        ("step", {"every": 3}, lambda o: lr_scheduler.StepLR(o, 3)),
    ],
)
def test_rates_equal_torchs(name, settings, reference):
    plan = replace(PLAN, schedule=name, schedule_settings=settings)
    found = [plan.in_round(number).lr for number in range(1, 11)]
    assert found == pytest.approx(_rates(reference))


def _rates_within(plan, rounds, *, steps):
    """Learning rates of every step of a run, from the plan alone."""
    found = []
    for number in range(1, rounds + 1):
        own = plan.in_round(number)
        found += [
            own.lr * own.factor_within(epoch, step, steps=steps)
            for epoch in range(plan.epochs)
            for step in range(steps)
        ]
    return found


@pytest.mark.parametrize(
    ("name", "settings", "make"),
    [
        ("cosine", {"final": 0.1}, lambda o, n: lr_scheduler.CosineAnnealingLR(o, n, eta_min=0.01)),
        ("exponential", {"gamma": 0.9}, lambda o, _: lr_scheduler.ExponentialLR(o, 0.9)),
        ("step", {"every": 4, "gamma": 0.5}, lambda o, _: lr_scheduler.StepLR(o, 4, gamma=0.5)),
        ("constant", {}, lambda o, _: lr_scheduler.ConstantLR(o, factor=1)),
    ],
)
@pytest.mark.parametrize(("per", "units"), [("round", 10), ("epoch", 20), ("step", 60)])
@pytest.mark.parametrize("warmup", [0, 2, 0.2])
def test_rates_per_round_epoch_and_step_equal_torchs_stepped_as_often(
    name, settings, make, per, units, warmup
):
    plan = replace(PLAN, epochs=2, schedule=name, schedule_settings=settings, schedule_per=per, warmup=warmup)
    rising = units // 5 if warmup else 0

    def reference(optimizer):
        if not rising:
            return make(optimizer, units)
        line = lr_scheduler.LinearLR(optimizer, start_factor=1 / (rising + 1), total_iters=rising)
        return lr_scheduler.SequentialLR(optimizer, [line, make(optimizer, units - rising)], [rising])

    expected = [rate for rate in _rates(reference, units) for _ in range(60 // units)]
    assert _rates_within(plan, 10, steps=3) == pytest.approx(expected)
    assert name == "constant" or len(set(expected)) > 2


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(1, 12).map(lambda n: n / 4), max_size=40),
    patience=st.integers(0, 3),
    cooldown=st.integers(0, 2),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
    final=st.sampled_from([0.0, 0.05]),
    metric=st.sampled_from(["loss", "primary"]),
)
def test_plateau_equals_torchs_reduce_on_plateau(values, patience, cooldown, threshold, final, metric):
    chosen = {"patience": patience, "cooldown": cooldown, "threshold": threshold, "final": final}
    schedule = make_schedule("plateau", {**chosen, "gamma": 0.5, "metric": metric})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="min" if metric == "loss" else "max",
        factor=0.5,
        patience=patience,
        cooldown=cooldown,
        threshold=threshold,
        min_lr=final,
        eps=0.0,
    )
    name = "loss" if metric == "loss" else "accuracy"
    evaluations = []
    for value in values:
        reference.step(value)
        evaluations.append(
            {"scores": [{"domain": "a", "split": "validation", "metrics": {name: value, "other": 0.0}}]}
        )
        assert schedule.reaction(evaluations, "classification") == optimizer.param_groups[0]["lr"]


def test_plateau_counts_an_undefined_loss_as_no_improvement():
    schedule = make_schedule("plateau", {"patience": 1, "gamma": 0.5})
    bad = {"scores": [{"domain": "a", "split": "validation", "metrics": {"loss": None}}]}
    assert [schedule.reaction([bad] * count, "classification") for count in range(4)] == [1, 1, 0.5, 0.5]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"schedule_per": "batch"}, "epoch, round, step"),
        ({"warmup": 10}, "shorter than the 10 rounds"),
        ({"warmup": -1}, "at least 0"),
        ({"schedule": "plateau", "schedule_settings": {"gamma": 1}}, "gamma.*below 1"),
        ({"schedule": "plateau", "schedule_settings": {"patience": -1}}, "patience.*negative"),
    ],
)
def test_wrong_values_are_refused(wrong, expected):
    with pytest.raises(UsageError, match=expected):
        replace(PLAN, **wrong)


def test_a_constant_schedule_leaves_the_configuration_as_it_is():
    assert PLAN.in_round(7) is PLAN


def test_a_schedule_changes_a_run_from_its_second_round_on(make_experiment, go):
    plan = replace(PLAN, lr=0.05, rounds=2)
    falling = replace(plan, schedule="exponential", schedule_settings={"gamma": 0.5})
    for rounds, same in ((1, True), (2, False)):
        plain, _ = go(make_experiment("fedavg", plan=plan), f"plain-{rounds}", rounds=rounds)
        other, _ = go(make_experiment("fedavg", plan=falling), f"falling-{rounds}", rounds=rounds)
        assert torch.equal(plain.weights, other.weights) is same


def test_a_registered_schedule_is_used_by_its_name(monkeypatch):
    class Warmup(type(make_schedule("constant"))):
        """Starts at half the rate."""

        def factor(self, round, rounds):
            return 0.5 if round == 1 else 1.0

    monkeypatch.setitem(SCHEDULES._entries, "warm-up", Warmup)
    plan = replace(PLAN, schedule="warm-up")
    assert [plan.in_round(number).lr for number in (1, 2)] == [0.05, 0.1]


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(UsageError, match="cosine"):
        replace(PLAN, schedule="cosin")
    with pytest.raises(UsageError, match="gamma"):
        replace(PLAN, schedule="exponential", schedule_settings={"gama": 0.5})
    with pytest.raises(UsageError, match="no settings"):
        replace(PLAN, schedule="constant", schedule_settings={"gamma": 0.5})


def test_a_constant_schedule_keeps_a_runs_identity_and_another_one_changes_it():
    config = RunConfig(data="rotated-digits", hold_out=("75",))
    assert config.identity() == "b1eadd3a4b2c"
    assert replace(config, schedule="cosine").identity() != config.identity()
    settings = replace(config, schedule="cosine", schedule_settings={"final": 0.1})
    assert settings.identity() != replace(config, schedule="cosine").identity()


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_says_what_it_is(name):
    assert (SCHEDULES[name].__doc__ or "").strip()


@pytest.mark.parametrize(
    ("rounds", "start", "every"), [(40, 0.75, 5), (40, 0.5, 3), (7, 0.0, 2), (9, 0.6, 1)]
)
def test_cycles_end_in_the_rounds_that_swa_averages(rounds, start, every):
    """FedSWA: the rate falls linearly within a cycle, and its last round is averaged."""
    schedule = make_schedule("cyclic", {"start": start, "every": every, "final": 0.1})
    swa, state, averaged, count = make_average("swa", {"start": start, "every": every}), {}, [], 0
    for number in range(1, rounds + 1):
        swa.collect(state, torch.zeros(1), round=number, rounds=rounds)
        now = swa.facts(state).get("rounds", 0)
        averaged += [number] if now > count else []
        count = now
    factors = {number: schedule.factor(number, rounds) for number in range(1, rounds + 1)}
    assert [factors[number] for number in averaged] == pytest.approx([0.1] * len(averaged))
    assert all(factors[number] == 1 for number in range(1, averaged[0]))
    cycle = [factors[number] for number in range(averaged[0] + 1, min(averaged[0] + every, rounds) + 1)]
    assert cycle == pytest.approx([1 - 0.9 * part / every for part in range(1, len(cycle) + 1)])


@pytest.mark.parametrize("settings", [{"start": 1.0}, {"every": 0}, {"final": 2}])
def test_impossible_cycles_are_refused(settings):
    with pytest.raises(UsageError):
        make_schedule("cyclic", settings)
