"""`--weighting`: one choice of client weights for every method, which none ignores silently."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from unseen.aggregation import ServerWork, Updates
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.hparams import Settings
from unseen.methods import METHODS, make_method
from unseen.methods.base import Method
from unseen.models import Kind, Layout
from unseen.runner.effort import with_effort
from unseen.runner.prepare import check_names

QUICK = {"csac": {"acquisition_epochs": 1}}
FIXED = {"deepall", "cwt", "ridge", "class-means", "fedpft", "zero-shot"}
CHOOSABLE = [name for name in METHODS if name not in FIXED]
OWN = {
    "samples": {"fedavg", "fedprox", "fedavgm", "fednova", "moon", "fedavg-share", "copa", "feddg", "mdfl"}
    | {"fedsr", "fedcmi", "fedl2r", "fedadam", "fedyogi", "fedadagrad", "fedomg", "fedgma", "qfedavg"}
    | {"fpl", "fedproto", "fedlc", "fedccrl", "promptfl", "fedsam", "fedasam", "fedlesam"}
    | {"irm", "vrex-domains", "groupdro-domains", "coral", "mmd", "fish", "relay"},
    "uniform": {"ppdg", "pcgrad", "agrsum", "agrrand", "fedbn", "scaffold", "fedga", "fedadg", "csac"}
    | {"afl", "groupdro", "vrex", "feddyn", "fedclip", "fediir", "fishr", "stablefdg"},
}


def trained(make_experiment, go, method, weighting, data=None):
    """Weights after two rounds."""
    experiment = make_experiment(method, data=data)
    chosen = make_method(method, QUICK.get(method), weighting=weighting)
    return go(replace(experiment, method=chosen), f"{method}-{weighting}", rounds=2)[0].weights


def test_every_method_is_weighted_as_its_paper_says_unless_told_otherwise():
    assert OWN["samples"] | OWN["uniform"] | FIXED == set(METHODS)
    for weighting, names in OWN.items():
        assert {make_method(name).weighting for name in names} == {weighting}


@pytest.mark.parametrize("method", CHOOSABLE)
def test_equal_clients_have_equal_weights_whatever_is_chosen(method, make_experiment, go):
    by = {each: trained(make_experiment, go, method, each) for each in ("samples", "uniform", "method")}
    torch.testing.assert_close(by["samples"], by["uniform"], rtol=1e-5, atol=1e-6)
    assert torch.equal(by["method"], by["samples" if method in OWN["samples"] else "uniform"])


@pytest.mark.parametrize("method", CHOOSABLE)
def test_unequal_clients_have_the_weights_that_are_chosen(method, make_experiment, make_tiny_data, go):
    data = make_tiny_data(missing=("b", 1))
    by = {each: trained(make_experiment, go, method, each, data) for each in ("samples", "uniform", "method")}
    assert (by["samples"] - by["uniform"]).abs().max() > 1e-5
    assert torch.equal(by["method"], by["samples" if method in OWN["samples"] else "uniform"])


@pytest.mark.parametrize("method", sorted(FIXED))
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_method_without_weights_of_clients_refuses_them_with_the_reason(method, weighting):
    reason = make_method(method).explain_fixed_weights()
    assert reason
    with pytest.raises(UsageError, match=f"--weighting {weighting} cannot act on {method}: {reason[:20]}"):
        make_method(method, weighting=weighting)


SIZES = torch.tensor([10.0, 30.0, 60.0], dtype=torch.float64)


def server_work():
    """Three clients of unequal size around common weights, in a layer and its batch norm."""
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    layout = Layout.of(module)
    generator = torch.Generator().manual_seed(0)
    rows = 2 + torch.randn(3, layout.size, generator=generator).abs()
    updates = Updates(("a", "b", "c"), rows, SIZES, torch.ones(3), ({}, {}, {}), layout)
    return ServerWork(round=1, seed=0, weights=torch.ones(layout.size), updates=updates)


@pytest.mark.parametrize(
    ("method", "settings", "factor"),
    [
        ("ppdg", {"strength": 0.0}, 1),
        ("ppdg", {"strength": 0.3}, 1),
        ("pcgrad", {}, 1),
        ("pcgrad", {"reduction": "sum"}, 3),
        ("agrsum", {}, 1),
        ("agrsum", {"reduction": "sum"}, 3),
        ("agrrand", {}, 1),
        ("csac", {"strategy": "average"}, 1),
        ("fedga", {}, 1),
        ("feddg", {}, 1),
        ("fedadg", {}, 1),
        ("fedomg", {"c": 0.0}, 1),
        ("fedomg", {"c": 0.0, "scaling": "as-released", "server_lr": 1.0}, 1 / 3),
        ("fedgma", {"signs": "computed"}, 1),
    ],
)
def test_samples_enter_as_in_fedavg_where_no_updates_conflict(method, settings, factor):
    """Updates do not conflict, so that surgery does nothing: w + factor sum_k n_k / n (w_k - w)."""
    work = server_work()
    merged = make_method(method, settings, weighting="samples").server(work).double()
    mean = SIZES / SIZES.sum() @ work.updates.rows.double()
    parameters, statistics = (
        work.updates.layout.extent(kind) for kind in (Kind.PARAMETER, Kind.FLOAT_BUFFER)
    )
    expected = 1 + factor * (mean - 1)
    torch.testing.assert_close(merged[parameters], expected[parameters], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged[statistics], mean[statistics], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", ["divergence", "similarity"])
def test_csac_multiplies_its_own_weights_by_the_samples(strategy):
    """p_k ~ n_k d_k (or n_k / d_k) with d_k the distance to the mean by samples, layer by layer."""
    work = server_work()
    method = make_method("csac", {"strategy": strategy}, weighting="samples")
    merged = method.server(work)
    rows, share = work.updates.rows.double(), SIZES / SIZES.sum()
    for entry in work.updates.layout.entries:
        if entry.kind is Kind.INTEGER_BUFFER:
            continue
        own = rows[:, entry.slice]
        distance = (own - share @ own).norm(dim=1)
        weights = share * (distance if strategy == "divergence" else 1 / distance)
        expected = weights / weights.sum() @ own
        torch.testing.assert_close(merged[entry.slice].double(), expected, rtol=1e-5, atol=1e-5)
    assert method.weights_text == f"samples, then by {strategy}"


def test_ppdg_weights_the_aligned_updates():
    """sum_i p_i g^_i with the g^_i of the paper's loop, where updates do conflict."""
    work = server_work()
    work.updates.rows[:, :6] = 1 + torch.eye(3).repeat(1, 2) - 0.6
    work.updates.rows[:, 6:] = 1
    by = {
        each: make_method("ppdg", {"strength": 0.3}, weighting=each).server(work) - 1
        for each in ("samples", "uniform")
    }
    assert work.diagnostics["alignment_steps"] > 0
    aligned = torch.stack([one_client(number, work) for number in range(3)]).double()
    for weighting, share in (("samples", SIZES / SIZES.sum()), ("uniform", torch.full((3,), 1 / 3))):
        torch.testing.assert_close(
            by[weighting].double()[:6], (share.double() @ aligned)[:6], atol=1e-6, rtol=0
        )


def one_client(number, work):
    """The aligned update of one client: the step if all weight were its own."""
    only = torch.zeros(3, dtype=torch.float64)
    only[number] = 1
    alone = replace(work, updates=replace(work.updates, samples=only))
    return make_method("ppdg", {"strength": 0.3}, weighting="samples").server(alone) - 1


@pytest.mark.parametrize(
    ("method", "setting"), [("fedavg", "weighting"), ("fedbn", "weighting"), ("fedga", "start")]
)
def test_a_setting_that_says_otherwise_is_a_contradiction(method, setting):
    with pytest.raises(
        UsageError, match=f"--weighting uniform and {method}'s setting {setting}=samples contradict"
    ):
        make_method(method, {setting: "samples"}, weighting="uniform")
    agreed = make_method(method, {setting: "uniform"}, weighting="uniform")
    assert agreed.weighting == "uniform"
    assert getattr(make_method(method, weighting="samples").settings, setting) == "samples"


def test_an_unknown_weighting_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="uniform"):
        make_method("fedavg", weighting="unifrm")


def test_a_plugin_that_declares_nothing_is_refused_rather_than_ignored():
    class Plugin(Method):
        name = title = "plugin"

        def server(self, work):
            return work.updates.mean(work.updates.samples)

    plugin = Plugin(Settings())
    assert "does not declare" in plugin.explain_fixed_weights()
    assert plugin.weights_text == "not declared"


def test_effort_leaves_the_weights_to_the_option(make_tiny_data):
    data = make_tiny_data()
    large = replace(data, inputs=data.inputs.repeat(8, axis=1).repeat(8, axis=2), fingerprint="")
    chosen = with_effort({"method": "fedavg", "weighting": "samples"}, data=large)
    assert "weighting" not in chosen.get("settings", {})
    assert with_effort({"method": "fedavg"}, data=large)["settings"] == {"weighting": "uniform"}


def config(**options):
    return RunConfig.from_mapping({"data": "rotated-digits", "hold_out": "75", **options})


def test_the_option_has_the_identity_of_the_setting_that_says_the_same():
    plain, uniform = ({"settings": {"weighting": each}} for each in ("samples", "uniform"))
    assert config(**plain, weighting="samples").identity() == config(**plain).identity()
    assert config(**uniform, weighting="uniform").identity() == config(**uniform).identity()
    ppdg = [config(method="ppdg", weighting=each).identity() for each in ("method", "samples", "uniform")]
    assert len(set(ppdg)) == 3


@pytest.mark.parametrize(
    "options",
    [{"aggregate": "median"}, {"protect": "dp-clients"}, {"protect": "secure-sum,dp-clients"}],
)
def test_weights_by_samples_are_refused_where_every_client_counts_once(options):
    with pytest.raises(UsageError, match="counts every client once"):
        check_names(config(weighting="samples", **options))
    check_names(config(weighting="uniform", **options))


def test_encrypted_surgery_takes_no_samples():
    check_names(config(method="ppdg", protect="encrypted"))
    with pytest.raises(UsageError, match="numbers of samples"):
        check_names(config(method="ppdg", protect="encrypted", weighting="samples"))
