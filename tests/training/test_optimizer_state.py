"""`--keep-optimizer-state`: a client's optimizer goes on where its latest round left it, to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from unseen.config import RunConfig
from unseen.engine import RoundStart, SerialEngine
from unseen.engine.workers.pool import WorkerEngine
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.runner.prepare import check_names
from unseen.runs.checkpoint import StateStore
from unseen.training import LocalTrainingConfig
from unseen.training.client import OPTIMIZER_STATE
from unseen.training.optimizer_state import load_state, read_state
from unseen.training.optimizers import OPTIMIZERS, make_optimizer

PLAN = LocalTrainingConfig(epochs=1, batch_size=4, lr=0.02, momentum=0.9, weight_decay=0.01, keep_state=True)
QUICK = {"csac": {"acquisition_epochs": 1}}
KEEPING = [
    name for name in METHODS if not METHODS[name].own_optimizers and name not in ("fednova", "scaffold")
]
HEADS = [(), (slice(2, 4),)]


def gradients(steps):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, generator=generator) for _ in range(steps)]


def walk(plan, parameters, steps, *, head=(), in_gradient=False, state=None):
    """Take steps with a fresh optimizer that starts from a state; return the state after them."""
    gradient = torch.zeros_like(parameters)
    optimizer = make_optimizer(plan, parameters, gradient, head=head, in_gradient=in_gradient)
    load_state(optimizer, state or {})
    for values in steps:
        optimizer.clear()
        gradient += values
        optimizer.step()
    return read_state(optimizer)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("in_gradient", [False, True])
@pytest.mark.parametrize("head", HEADS, ids=["plain", "head"])
def test_two_rounds_with_a_kept_state_are_one_long_round_to_the_bit(name, in_gradient, head):
    plan, steps = replace(PLAN, optimizer=name, head_lr=2.0 if head else 1.0), gradients(8)
    whole, parts = torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 6)
    walk(plan, whole, steps, head=head, in_gradient=in_gradient)
    state = walk(plan, parts, steps[:3], head=head, in_gradient=in_gradient)
    saved = {key: value.clone() for key, value in state.items()}
    walk(plan, parts, steps[3:], head=head, in_gradient=in_gradient, state=state)
    assert torch.equal(whole, parts)
    assert all(torch.equal(value, saved[key]) for key, value in state.items()), "the kept state is a copy"
    forgot = torch.linspace(-1, 1, 6)
    for some in (steps[:3], steps[3:]):
        walk(plan, forgot, some, head=head, in_gradient=in_gradient)
    assert (whole - forgot).abs().max() > 1e-4


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_they_are_the_steps_of_torchs_class_that_was_never_restarted(name):
    plan, steps = replace(PLAN, optimizer=name), gradients(6)
    found = torch.linspace(-1, 1, 6)
    state = walk(plan, found, steps[:2])
    walk(plan, found, steps[2:], state=state)
    entry, weight = OPTIMIZERS[name], torch.nn.Parameter(torch.linspace(-1, 1, 6))
    options = {"momentum": 0.9, "nesterov": name == "sgd-nesterov"} if entry.sums_gradients else {}
    literal = entry.kind([weight], lr=plan.lr, weight_decay=plan.weight_decay, **entry.options, **options)
    for values in steps:
        weight.grad = values.clone()
        literal.step()
    torch.testing.assert_close(found, weight.detach())


@pytest.mark.parametrize("method", KEEPING)
def test_a_resumed_run_of_every_method_keeps_the_state_to_the_bit(method, make_experiment, go):
    def make(keep=True):
        return make_experiment(method, settings=QUICK.get(method), plan=replace(PLAN, keep_state=keep))

    whole, _ = go(make(), "whole", rounds=3)
    go(make(), "parts", rounds=1)
    resumed, _ = go(make(), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)
    forgot, _ = go(make(keep=False), "forgot", rounds=3)
    assert not torch.equal(whole.weights, forgot.weights), "the kept state changes the outcome"


def test_it_is_in_the_clients_state_and_worker_processes_have_the_same_bits(make_experiment, tmp_path):
    def make():
        return make_experiment(plan=replace(PLAN, optimizer="adam"))

    states = StateStore(tmp_path / "one")
    engines = [
        SerialEngine(make(), states),
        WorkerEngine(make(), StateStore(tmp_path / "two"), workers=2, threads=1, max_clients=3),
    ]
    try:
        found, first = [], engines[0].workspace.flat.read()
        for engine in engines:
            start = first
            for number in (1, 2):
                rows, _ = engine.train((0, 1, 2), RoundStart(number, start))
                start = rows.mean(0)
            found.append(start)
    finally:
        for engine in engines:
            engine.close()
    assert torch.equal(*found)
    with states.open_states("a", round=3, protected=False) as (state, _):
        kept = {key.split(": ")[1] for key in state if key.startswith(OPTIMIZER_STATE)}
    assert kept == {"step", "exp_avg", "exp_avg_sq"}


def test_a_state_that_diverged_is_not_kept(make_experiment, tmp_path):
    engine = SerialEngine(make_experiment(plan=replace(PLAN, lr=1e30)), StateStore(tmp_path / "states"))
    engine.train((0,), RoundStart(1, engine.workspace.flat.read()))
    with engine.states.open_states("a", round=2, protected=False) as (state, _):
        assert not any(key.startswith(OPTIMIZER_STATE) for key in state)


def config(**options):
    given = {"data": "rotated-digits", "hold_out": "75", "keep_optimizer_state": True}
    return RunConfig.from_mapping({**given, **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "fedadg"}, "cannot act on fedadg: it trains three networks"),
        ({"method": "ridge"}, "cannot act on ridge: it trains nothing"),
        ({"momentum": 0.0}, "sgd without momentum has no state"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_keep(options, reason):
    with pytest.raises(UsageError, match=reason):
        check_names(config(**options))


@pytest.mark.parametrize("method", ["fednova", "scaffold"])
def test_methods_that_count_a_rounds_gradients_refuse_those_of_earlier_rounds(method, make_experiment, go):
    with pytest.raises(UsageError, match="leave out --keep-optimizer-state"):
        go(make_experiment(method, plan=PLAN))


def test_a_method_that_does_not_use_the_runs_optimizer_is_found_out(make_experiment, go):
    experiment = make_experiment("fedavg", plan=PLAN)

    class Idle(METHODS["fedavg"]):
        def client(self, work):
            return work.update()

    with pytest.raises(UsageError, match="does not train by the optimizer of the run"):
        go(replace(experiment, method=Idle(make_method("fedavg").settings)))


def test_without_the_option_a_runs_identity_is_as_before():
    kept, plain = config(), config(keep_optimizer_state=False)
    before = RunConfig.from_mapping({"data": "rotated-digits", "hold_out": "75"})
    assert plain.identity() == before.identity() != kept.identity()
