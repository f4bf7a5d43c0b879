"""FedGMA against its mask written out, with signs sent and computed, and where it is FedAvg."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from literal_clients import assert_state, layout_of, mean_state, start_of, trained_names, visit

from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedgma import SIGNS
from unseen.models import Kind
from unseen.privacy import make_protection
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.02, momentum=0.5)


def literal_run(experiment, *, tau, eta, rounds):
    """The mask tensor by tensor: 1 from the threshold on, the agreement itself below it."""
    state, names = start_of(experiment), trained_names(experiment)
    for number in range(1, rounds + 1):
        visits = [visit(experiment, client, round=number, start=state) for client in "abc"]
        mean = mean_state([each.state for each in visits], [each.samples for each in visits])
        for name in names:
            signs = torch.stack([torch.sign(each.state[name] - state[name]) for each in visits])
            agreement = signs.sum(dim=0).abs() / 3
            mask = torch.where(agreement >= tau, torch.ones_like(agreement), agreement)
            mean[name] = state[name] + eta * mask * (mean[name] - state[name])
        state = mean
    return state


@pytest.mark.parametrize("signs", ["sent", "computed"])
@pytest.mark.parametrize(("tau", "eta"), [(0.4, 1.0), (1.0, 0.5)])
def test_equals_the_literal_algorithm(make_uneven_experiment, go, signs, tau, eta):
    settings = {"tau": tau, "server_lr": eta, "signs": signs}
    ours, _ = go(make_uneven_experiment("fedgma", settings=settings), rounds=2)
    literal = make_uneven_experiment("fedgma")
    assert_state(ours.weights, literal_run(literal, tau=tau, eta=eta, rounds=2), layout_of(literal))


def test_without_a_threshold_it_is_fedavg_to_the_bit(make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment("fedgma", settings={"tau": 0}), "ours", rounds=2)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=2)
    assert torch.equal(ours.weights, fedavg.weights)


def test_the_mask_shortens_the_step_and_says_so(make_uneven_experiment, go, rounds_of):
    ours, records = go(make_uneven_experiment("fedgma"), "ours", rounds=1)
    fedavg, _ = go(make_uneven_experiment("fedavg"), "fedavg", rounds=1)
    assert (ours.weights - fedavg.weights).abs().max() > 1e-3
    found = rounds_of(records)[0]["diagnostics"]
    assert 0 < found["masked_fraction"] < 1
    assert 0 < found["mean_agreement"] < 1


def test_signs_that_are_sent_cost_half_as_much_again_and_are_declared(make_uneven_experiment, go, rounds_of):
    _, sent = go(make_uneven_experiment("fedgma"), "sent", rounds=1)
    _, computed = go(make_uneven_experiment("fedgma", settings={"signs": "computed"}), "computed", rounds=1)
    _, fedavg = go(make_uneven_experiment("fedavg"), "fedavg", rounds=1)
    more, same, plain = (rounds_of(each)[0]["bytes_up"] for each in (sent, computed, fedavg))
    assert same == plain < more
    experiment = make_uneven_experiment("fedgma")
    described = experiment.method.describe_extras(experiment.network)[SIGNS]
    parameters = layout_of(experiment).extent(Kind.PARAMETER).stop
    assert described.shape == (parameters,)
    assert more - plain == 3 * 2 * parameters
    assert SIGNS not in make_method("fedgma", {"signs": "computed"}).sends


def test_a_sum_of_signs_is_enough_for_secure_summation(make_uneven_experiment, go):
    """And where the server is to compute them, secure summation refuses the method."""
    plain, _ = go(make_uneven_experiment("fedgma", plan=PLAN), "plain", rounds=2)
    experiment = make_uneven_experiment("fedgma", plan=PLAN)
    protection = make_protection("secure-sum", {"batch_seed": "run"})
    summed, _ = go(replace(experiment, protection=protection), "summed", rounds=2)
    floats = slice(0, layout_of(experiment).extent(Kind.FLOAT_BUFFER).stop)
    torch.testing.assert_close(summed.weights[floats], plain.weights[floats], rtol=1e-3, atol=2e-5)
    assert protection.incompatibility(make_method("fedgma").traits) is None
    assert protection.incompatibility(make_method("fedgma", {"signs": "computed"}).traits)


def test_numbers_that_are_no_signs_are_refused(make_uneven_experiment):
    experiment = make_uneven_experiment("fedgma")
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    told = {"plan": experiment.plan, "outputs": 3, "own": (0,)}
    assert experiment.method.explain_unusable_extras(update, **told) == ""
    louder = replace(update, extras={SIGNS: 50 * update.extras[SIGNS]})
    assert "signs other than" in experiment.method.explain_unusable_extras(louder, **told)


@pytest.mark.parametrize(("settings", "said"), [({"tau": 1.1}, r"\[0, 1\]"), ({"server_lr": 0}, "above 0")])
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        make_method("fedgma", settings)
