"""Schedules give the learning rate of every round; the constant one changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

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
        ("constant", {}, lambda o: torch.optim.lr_scheduler.ConstantLR(o, factor=1)),
        ("cosine", {}, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10)),
        ("cosine", {"final": 0.1}, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10, eta_min=0.01)),
        ("exponential", {"gamma": 0.8}, lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8)),
        ("step", {"every": 3}, lambda o: torch.optim.lr_scheduler.StepLR(o, 3)),
    ],
)
def test_rates_equal_torchs(name, settings, reference):
    plan = replace(PLAN, schedule=name, schedule_settings=settings)
    found = [plan.in_round(number).lr for number in range(1, 11)]
    assert found == pytest.approx(_rates(reference))


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
