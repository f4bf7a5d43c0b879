"""Combined protections: noise at the clients under secure summation, its scale, its price, its refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from unseen.audit.replay import choose_images, replay_round, single_step
from unseen.cli.main import app
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.models import FlatState
from unseen.privacy import PROTECTIONS, MethodTraits, PlannedRun, make_protection, protection_type
from unseen.privacy.combined import SecureDPClients
from unseen.privacy.dp.accountant import Steps, compute_epsilon
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=1, batch_size=5, lr=0.05, momentum=0.5)
REPEATABLE = {"noise_seed": "run", "batch_seed": "run"}
DELTA = 1e-5


def planned(module, *, clients: int = 3, in_round: int = 3, rounds: int = 2) -> PlannedRun:
    return PlannedRun(MethodTraits("fedavg"), rounds, [15] * clients, in_round, module, PLAN)


def protected(experiment, name: str, **settings):
    made = make_protection(name, {**REPEATABLE, **settings} if "," in name else settings)
    return replace(experiment, protection=made.resolve(planned(experiment.network)))


def round_records(records) -> list[dict]:
    return [record for record in records.entries if record["event"] == "round"]


# the price


def literal_epsilon(noise: float, rounds: int) -> float:
    """Epsilon of `rounds` Gaussian mechanisms by hand: divergence a R / (2 noise^2) of every order a."""
    orders = np.array([1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)))
    found = orders * rounds / (2 * noise**2)
    found += np.log((orders - 1) / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    return float(found.min())


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 4), (8.0, 60)])
def test_epsilon_of_distributed_noise_is_that_of_a_hand_computation(noise, rounds):
    made = make_protection("secure-sum,dp-clients", {"noise": noise, "delta": DELTA})
    state: dict[str, torch.Tensor] = {"rounds asked of a": torch.tensor([[1.0, rounds]])}
    state["rounds asked of b"] = torch.tensor([[1.0, rounds - 1]])
    spent = made.privacy_spent(state)
    assert spent["epsilon"] == pytest.approx(literal_epsilon(noise, rounds), rel=1e-9)
    assert (spent["unit"], spent["steps"], spent["sampling_rate"]) == ("client", rounds, 1.0)


@pytest.mark.parametrize(("noise", "rate", "rounds"), [(2.0, 1.0, 4), (8.0, 1.0, 60), (1.1, 0.2, 50)])
def test_epsilon_is_that_of_a_second_accountant(noise, rate, rounds):
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import rdp

    orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))
    accountant = rdp.RdpAccountant(orders)
    event = dp.GaussianDpEvent(noise)
    accountant.compose(dp.PoissonSampledDpEvent(rate, event) if rate < 1 else event, rounds)
    ours = compute_epsilon([Steps(rate, rounds)], noise=noise, delta=DELTA)
    tolerance = 1e-6 if rate == 1 else 2e-3  # the two bound fractional orders of sampled noise differently
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=tolerance)


def test_noise_is_found_for_an_epsilon_without_gain_from_sampling(make_experiment):
    network = make_experiment().network
    made = make_protection("secure-sum,dp-clients", {"epsilon": 4.0, "delta": DELTA})
    resolved = made.resolve(planned(network, clients=9, in_round=5, rounds=10))
    settings = resolved.settings
    assert 3.9 < literal_epsilon(settings.noise, 10) <= 4.0 and settings.threshold == 3


# the noise


@given(clients=st.integers(3, 200), threshold=st.none() | st.integers(2, 200), noise=st.floats(0.1, 50))
def test_any_survivors_but_one_have_the_noise_that_the_accountant_assumes(clients, threshold, noise):
    made = SecureDPClients(
        SecureDPClients.settings_type()(noise=noise, clip=2.0, threshold=threshold, delta=DELTA)
    )
    fewest = made.secure.threshold(clients)
    part = made.noise_part(clients)
    for survivors in (fewest, fewest + 1, max(clients, fewest)):
        assert math.sqrt((survivors - 1) * part**2) >= noise * 2.0 * (1 - 1e-12)


def test_the_sum_has_the_noise_of_its_clients(make_experiment, go):
    still = replace(PLAN, lr=1e-9)
    experiment = protected(make_experiment(plan=still), "secure-sum,dp-clients", noise=3.0, clip=0.5)
    start = FlatState(experiment.network).read()
    checkpoint, records = go(experiment, rounds=1)
    found = (checkpoint.weights - start).double().numpy()
    expected = 3.0 * 0.5 / math.sqrt(3 - 1) / math.sqrt(3)
    assert stats.kstest(found / expected, "norm").pvalue > 0.001
    assert found.std() == pytest.approx(expected, rel=0.02)
    assert round_records(records)[0]["loss"] is None


def test_updates_are_clipped_before_they_are_summed(make_experiment, go):
    fast = replace(PLAN, lr=5.0)
    experiment = protected(make_experiment(plan=fast), "secure-sum,dp-clients", noise=1e-3, clip=0.5)
    start = FlatState(experiment.network).read()
    checkpoint, _ = go(experiment, rounds=1)
    moved = float((checkpoint.weights - start).norm())
    assert 0.05 < moved <= 0.5 + 1e-3 * 0.5 * math.sqrt(len(start))


def test_with_little_noise_it_is_the_mean_with_equal_weights(make_experiment, go):
    plain, _ = go(make_experiment(plan=PLAN), "plain", rounds=1)
    experiment = protected(make_experiment(plan=PLAN), "secure-sum,dp-clients", noise=1e-4, clip=20.0)
    checkpoint, _ = go(experiment, "both", rounds=1)
    torch.testing.assert_close(checkpoint.weights, plain.weights, atol=0.01, rtol=0.01)


def test_noise_too_fine_for_the_grid_is_refused(make_experiment):
    made = make_protection("secure-sum,dp-clients", {"noise": 0.01, "clip": 1e-3})
    with pytest.raises(UsageError, match="too little for the grid"):
        made.resolve(planned(make_experiment().network))


def test_sample_level_noise_under_masks_is_that_of_dp_samples_alone(make_experiment, go):
    settings = {"noise": 0.8, "clip": 0.5}
    alone, first = go(
        protected(make_experiment(plan=PLAN), "dp-samples", noise_seed="run", **settings), "alone", rounds=2
    )
    both, second = go(
        protected(make_experiment(plan=PLAN), "secure-sum,dp-samples", **settings), "both", rounds=2
    )
    torch.testing.assert_close(both.weights, alone.weights, atol=1e-4, rtol=1e-4)
    spent = [round_records(each)[-1]["protection"] for each in (first, second)]
    assert spent[0] == spent[1] and spent[0]["epsilon"] > 0


def test_resumed_runs_go_on_with_the_same_noise_batches_and_epsilon(make_experiment, go):
    for name in ("secure-sum,dp-clients", "secure-sum,dp-samples"):

        def experiment(name=name):
            return protected(make_experiment(plan=PLAN), name, batch_seed="secret")

        whole, records = go(experiment(), f"whole {name}")
        go(experiment(), f"parts {name}", rounds=1)
        resumed, again = go(experiment(), f"parts {name}")
        assert torch.equal(whole.weights, resumed.weights)
        assert round_records(records)[-1]["protection"] == round_records(again)[-1]["protection"]


# what is recorded


@pytest.mark.parametrize("name", ["secure-sum,dp-clients", "secure-sum,dp-samples"])
def test_the_record_says_that_updates_are_noised_and_masked(name, make_experiment, go):
    _, records = go(protected(make_experiment(plan=PLAN), name, noise_seed="secret"), rounds=1)
    left = {entry["kind"]: entry.get("protected", "") for entry in round_records(records)[0]["left"]}
    assert "noised" in left["model weights"] and "masked" in left["model weights"]
    assert "no loss" in next(how for kind, how in left.items() if "loss" in kind)
    assert ("number of samples" in left) == (name == "secure-sum,dp-samples")
    statement = make_protection(name).statement()
    assert "only the" in statement and "secret key" in statement
    assert "can read each client's" not in statement


@pytest.mark.parametrize("name", ["secure-sum,dp-clients", "secure-sum,dp-samples"])
def test_the_audits_round_can_be_replayed(name, make_experiment):
    experiment = protected(make_experiment(plan=PLAN), name)
    images = choose_images(experiment, count=2, fraction=1.0)
    observed = replay_round(single_step(experiment, images), rounds=1)
    assert observed.merged is not None and torch.isfinite(observed.merged).all()
    assert all(len(update.weights) == 0 for update in observed.messages.values())
    assert observed.spent["epsilon"] > 0


def test_methods_are_served_where_both_parts_serve_them():
    for name in ("secure-sum,dp-clients", "secure-sum,dp-samples"):
        parts = [make_protection(part) for part in name.split(",")]
        for method in METHODS:
            traits = make_method(method).traits
            alone = all(part.incompatibility(traits) is None for part in parts)
            assert (make_protection(name).incompatibility(traits) is None) == alone


# names


@pytest.mark.parametrize("named", ["dp-clients,secure-sum", "secure-sum, dp-clients"])
def test_the_order_of_names_does_not_matter(named):
    assert protection_type(named) is SecureDPClients
    assert make_protection(named, {"noise": 2.0, "bits": 20}).settings.bits == 20


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("secure-sum,none", "none means that there is no protection"),
        ("none,none", "named twice"),
        ("secure-sum,secure-sum", "named twice"),
        ("dp-samples,dp-clients", "both add noise, for different units"),
        ("secure-sum,encrypted", "both hide single updates"),
        ("encrypted,dp-samples", "noise combines with secure-sum only"),
        ("secure-sum,dp-samples,dp-clients", "at most two combine"),
        ("secure-sum,dp-sample", "unknown protection 'dp-sample'"),
        ("secure-sum,", "unknown protection ''"),
    ],
)
def test_combinations_without_sense_are_refused_with_the_reason(named, reason):
    with pytest.raises(UsageError, match=reason):
        make_protection(named)


def test_adaptive_clipping_is_refused():
    with pytest.raises(UsageError, match="fixed clipping norm"):
        make_protection("secure-sum,dp-clients", {"adaptive": True})


def test_a_list_in_a_job_file_is_the_comma_form():
    values = {"data": "rotated-digits", "hold_out": ["0"]}
    listed = RunConfig.from_mapping({**values, "protect": ["secure-sum", "dp-clients"]})
    assert listed == RunConfig.from_mapping({**values, "protect": "secure-sum,dp-clients"})


def train(*options: str) -> str:
    result = CliRunner().invoke(app, ["train", "rotated-digits", "--hold-out", "0", *options])
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit | UsageError)
    return f"{result.output} {result.exception}"


def test_a_protection_given_twice_is_not_dropped(tmp_path: Path):
    """R8: of `--protect secure-sum --protect none` the last one won, and nobody was told."""
    out = ("--out", str(tmp_path / "run"))
    assert "none means that there is no protection" in train(
        "--protect", "secure-sum", "--protect", "none", *out
    )
    both = train("--protect", "secure-sum", "--protect", "dp-clients", "--protect-set", "adaptive=true", *out)
    assert "fixed clipping norm" in both


def test_combinations_are_listed():
    assert {"secure-sum,dp-clients", "secure-sum,dp-samples"} <= set(PROTECTIONS)
