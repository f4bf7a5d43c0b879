"""SAM and ASAM follow their equations on the flat vector, clipping is torch's, all methods can use them."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_training import assert_same_state, small_network, train_literally

from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import METHODS
from unseen.privacy import make_protection
from unseen.training import GRADIENT_RULES, ClientWork, LocalTrainingConfig
from unseen.training.gradient_rules import GradientRule, clip_gradients, perturbed, sharpness_aware

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)
OTHER_RULES = {"fedadg", "fedsam", "fedasam", "fedlesam"}
FITTING = sorted(name for name in METHODS if name not in OTHER_RULES and not METHODS[name].needs_texts)


@pytest.fixture
def experiment(make_experiment):
    """Make an experiment whose network has batch norm."""
    return lambda plan, method="fedavg": replace(make_experiment(method, plan=plan), network=small_network())


def trained(experiment, round=1):
    workspace = Workspace(replace(experiment, network=copy.deepcopy(experiment.network)))
    update = workspace.train_client(0, {}, RoundStart(round, workspace.flat.read()))
    return update, workspace.flat.layout


def sgd(network):
    return torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.5)


def literal_sam(rho, *, adaptive=False, clip=None):
    """The papers' two passes over named tensors; batch-norm statistics are those of the first."""

    def step(network, loss, _):
        loss().backward()
        named = dict(network.named_parameters())
        sizes = {
            name: value.detach().abs() + 0.01
            if adaptive and name.endswith("weight")
            else torch.ones_like(value)
            for name, value in named.items()
        }
        norm = sum((sizes[name] * value.grad).square().sum() for name, value in named.items()).sqrt()
        before = {name: value.clone() for name, value in network.state_dict().items()}
        with torch.no_grad():
            for name, value in named.items():
                value.add_(rho * sizes[name] ** 2 * value.grad / norm)
                value.grad.zero_()
        loss().backward()
        network.load_state_dict(before)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip)

    return step


@pytest.mark.parametrize(("rule", "rho"), [("sam", 0.3), ("sam", None), ("asam", 0.5), ("asam", None)])
def test_sharpness_rules_equal_the_papers_two_passes(experiment, rule, rho):
    ready = experiment(replace(PLAN, sharpness=rule, rho=rho))
    update, layout = trained(ready)
    radius = rho or GRADIENT_RULES[rule].rho
    expected = train_literally(ready, optimizer=sgd, batch_step=literal_sam(radius, adaptive=rule == "asam"))
    assert_same_state(update.weights, layout, expected)
    plain, _ = trained(experiment(PLAN))
    assert float((update.weights - plain.weights).norm()) > 1e-3
    assert int(layout.tensors(update.weights)["stages.first.1.num_batches_tracked"]) == update.steps


def test_the_reported_loss_is_that_of_the_first_pass(experiment):
    plan = replace(PLAN, epochs=1, batches_per_epoch=1)
    update, _ = trained(experiment(replace(plan, sharpness="sam", rho=5.0)))
    assert update.loss == trained(experiment(plan))[0].loss


@pytest.mark.parametrize("bound", [0.05, 1e6])
@pytest.mark.parametrize("rho", [None, 0.1])
def test_clipping_equals_torchs_in_local_training(experiment, bound, rho):
    sharp = {} if rho is None else {"sharpness": "sam", "rho": rho}
    ready = experiment(replace(PLAN, clip_norm=bound, **sharp))
    update, layout = trained(ready)

    def plain(network, loss, _):
        loss().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), bound)

    step = plain if rho is None else literal_sam(rho, clip=bound)
    assert_same_state(update.weights, layout, train_literally(ready, optimizer=sgd, batch_step=step))
    unclipped, _ = trained(experiment(replace(PLAN, **sharp)))
    distance = float((update.weights - unclipped.weights).norm())
    assert distance > 1e-3 if bound < 1 else distance < 1e-5


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
    bound=st.floats(1e-3, 10),
)
def test_several_gradients_are_clipped_by_their_common_norm(sizes, seed, bound):
    generator = torch.Generator().manual_seed(seed)
    ours = [torch.randn(size, generator=generator) for size in sizes]
    theirs = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    for own, other in zip(ours, theirs, strict=True):
        other.grad = own.clone()
    clip_gradients(ours, bound)
    torch.nn.utils.clip_grad_norm_(theirs, bound)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other.grad)


def test_a_methods_own_gradient_terms_come_after_the_rule_and_at_the_weights_themselves(experiment):
    ready = experiment(replace(PLAN, sharpness="sam", rho=0.3, clip_norm=0.1, epochs=1, batches_per_epoch=1))
    seen = []

    def client(work):
        def add(weights, gradient):
            seen.append((weights.clone(), gradient.clone()))
            gradient.add_(100.0)

        work.fit(lambda batch: work.task_loss(work.module(batch.inputs), batch.targets), adjust_gradient=add)
        return work.update()

    ready.method.client = client
    update, _ = trained(ready)
    weights, gradient = seen[0]
    start = Workspace(experiment(PLAN)).flat
    assert torch.equal(weights, start.parameters)
    assert float(gradient.norm()) <= 0.1001
    moved = (start.parameters - update.weights[: len(weights)]) / 0.05
    torch.testing.assert_close(moved, gradient + 100, rtol=1e-3, atol=1e-3)


def test_a_perturbation_is_undone_exactly_even_after_an_error(experiment):
    flat = Workspace(experiment(PLAN)).flat
    flat.gradient.normal_()
    before = flat.read()
    with pytest.raises(RuntimeError), perturbed([flat], sharpness_aware, 0.5):
        assert float((flat.read() - before).norm()) == pytest.approx(0.5, rel=1e-5)
        flat.module(torch.randn(4, 3, 8, 8))
        raise RuntimeError
    assert torch.equal(flat.read(), before)


@pytest.mark.parametrize("method", FITTING)
def test_every_method_that_fits_trains_with_sharpness_clipping_and_a_head_rate(
    make_experiment, go, method, monkeypatch
):
    settings = {"csac": {"acquisition_epochs": 1}}.get(method)
    plan = replace(PLAN, epochs=1)
    fits, fit = [], ClientWork.fit
    monkeypatch.setattr(ClientWork, "fit", lambda work, *loss, **more: fits.append(fit(work, *loss, **more)))
    plain, _ = go(make_experiment(method, plan=plan, settings=settings), "plain")
    if not fits:
        pytest.skip("a closed form, without gradients")
    for name, options in {
        "sam": {"sharpness": "sam", "rho": 0.5},
        "clip": {"clip_norm": 0.01},
        "head": {"head_lr": 3.0},
        "step": {"schedule": "cosine", "schedule_per": "step", "rounds": 2},
    }.items():
        if name == "step" and method in ("fednova", "scaffold"):
            continue
        changed = replace(plan, **options)
        point, _ = go(make_experiment(method, plan=changed, settings=settings), name)
        assert not torch.equal(point.weights, plain.weights), name
        assert bool(torch.isfinite(point.weights).all())


def test_fedadg_clips_and_refuses_sharpness(make_experiment, go):
    plan = replace(PLAN, epochs=1)
    plain, _ = go(make_experiment("fedadg", plan=plan), "plain")
    for name, options in {
        "clip": {"clip_norm": 0.01},
        "head": {"head_lr": 3.0},
        "step": {"schedule": "cosine", "schedule_per": "step", "rounds": 2},
    }.items():
        point, _ = go(make_experiment("fedadg", plan=replace(plan, **options)), name)
        assert not torch.equal(point.weights, plain.weights)
    with pytest.raises(UsageError, match=r"fedadg.*--sharpness none"):
        go(make_experiment("fedadg", plan=replace(plan, sharpness="sam")), "sam")


def test_sharpness_is_refused_with_differential_privacy_of_samples(make_experiment):
    protection = make_protection("dp-samples", {"noise_seed": "run", "noise": 1.0, "clip": 1.0})
    ready = replace(make_experiment(plan=replace(PLAN, sharpness="asam")), protection=protection)
    workspace = Workspace(ready)
    with pytest.raises(UsageError, match=r"--sharpness asam.*differential privacy.*--sharpness none"):
        workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()), {})


def test_a_registered_rule_is_used_by_its_name(experiment, monkeypatch):
    GRADIENT_RULES["none"]

    def nowhere(trained, rho):
        return [torch.zeros_like(flat.parameters) for flat in trained]

    monkeypatch.setitem(GRADIENT_RULES._entries, "nowhere", GradientRule("no shift", nowhere, 1.0))
    update, _ = trained(experiment(replace(PLAN, sharpness="nowhere")))
    plain, _ = trained(experiment(PLAN))
    torch.testing.assert_close(update.weights, plain.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"clip_norm": 0.0}, "above 0"),
        ({"head_lr": 0.0}, "above 0"),
        ({"rho": 0.1}, "--sharpness sam"),
        ({"sharpness": "sam", "rho": 0.0}, "rho must be above 0"),
        ({"sharpness": "sham"}, "sam"),
    ],
)
def test_wrong_values_are_refused(wrong, expected):
    with pytest.raises(UsageError, match=expected):
        replace(PLAN, **wrong)


@pytest.mark.parametrize("name", GRADIENT_RULES)
def test_every_rule_says_what_it_is(name):
    assert GRADIENT_RULES[name].summary
