"""FedGA against its paper's algorithm, step by step, and against what goes wrong in released code."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn import functional as F

from unseen.aggregation import ServerWork, Updates, adjust_weights, weighted_mean
from unseen.data import DataSet, Samples
from unseen.engine import Workspace
from unseen.engine.experiment import RoundStart
from unseen.errors import UsageError
from unseen.federation import PartitionConfig
from unseen.methods import make_method
from unseen.methods.fedga import GAP, remaining_part
from unseen.models import FlatState
from unseen.training import LocalTrainingConfig

ROUNDS = 4
PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.1, momentum=0.5)


def gaps_of(records) -> list[dict[str, float]]:
    """The gaps of every round that had any."""
    found = [entry["diagnostics"].get(GAP) for entry in records.entries if entry["event"] == "round"]
    return [gaps for gaps in found if gaps]


def literal_fedga(experiment, *, step: float, sizes: bool) -> tuple[torch.Tensor, list[list[float]]]:
    """The paper's rounds: merge, compare every client's own model with the merged one, move the weights."""
    space = Workspace(experiment)
    clients = [experiment.federation[position] for position in range(len(experiment.federation))]
    weights = space.flat.read()

    def loss(state: torch.Tensor, position: int) -> float:
        space.flat.load(state)
        space.module.eval()
        samples = Samples(experiment.data, clients[position].validation)
        total = 0.0
        for number in range(len(samples)):
            batch = experiment.prepare(samples.gather(torch.tensor([number])))
            with torch.no_grad():
                total += float(F.cross_entropy(space.module(batch.inputs), batch.targets))
        return total / len(samples)

    a = [float(len(client.train)) if sizes else 1.0 for client in clients]
    a = [value / sum(a) for value in a]
    history, gaps = [], None
    for number in range(1, ROUNDS + 1):
        if gaps is not None:
            d = (1 - (number - 1) / ROUNDS) * step
            mean = sum(gaps) / len(gaps)
            largest = max(abs(gap - mean) for gap in gaps)
            a = [
                max(0.0, own + d / len(a) * (gap - mean) / largest) for own, gap in zip(a, gaps, strict=True)
            ]
            a = [own / sum(a) for own in a]
        own_models = [
            space.train_client(position, {}, RoundStart(number, weights)).weights.clone()
            for position in range(len(clients))
        ]
        weights = sum(value * model.double() for value, model in zip(a, own_models, strict=True)).float()
        gaps = [loss(weights, place) - loss(model, place) for place, model in enumerate(own_models)]
        history.append(a)
    return weights, history


@pytest.mark.parametrize(("start", "step"), [("uniform", 0.2), ("samples", 0.9)])
def test_equals_the_literal_algorithm(start, step, make_experiment, make_tiny_data, go):
    data = make_tiny_data(missing=("b", 1))
    settings = {"start": start, "step": step}
    checkpoint, records = go(make_experiment("fedga", data=data, settings=settings, plan=PLAN), rounds=ROUNDS)
    plain = make_experiment("fedavg", data=data, plan=PLAN)
    weights, history = literal_fedga(plain, step=step, sizes=start == "samples")
    torch.testing.assert_close(checkpoint.weights, weights, rtol=1e-4, atol=1e-5)
    rounds = [record for record in records.entries if record["event"] == "round"]
    ours = [list(record["diagnostics"]["client_weights"].values()) for record in rounds]
    np.testing.assert_allclose(ours, history, rtol=1e-4)
    assert np.abs(np.array(ours) - ours[0]).max() > 0.02
    assert GAP not in rounds[0]["diagnostics"] and [len(gaps) for gaps in gaps_of(records)] == [3] * 3


@pytest.mark.parametrize("start", ["uniform", "samples"])
def test_without_a_step_it_is_fedavg_to_the_bit(start, make_experiment, make_tiny_data, go):
    data = make_tiny_data(missing=("b", 1))
    still, _ = go(
        make_experiment("fedga", data=data, settings={"step": 0, "start": start}), "still", rounds=3
    )
    plain, _ = go(make_experiment("fedavg", data=data, settings={"weighting": start}), "plain", rounds=3)
    moved, _ = go(make_experiment("fedga", data=data, settings={"start": start}), "moved", rounds=3)
    assert torch.equal(still.weights, plain.weights)
    assert not torch.equal(moved.weights, plain.weights)


def test_a_client_alone_has_no_gap_at_all(make_experiment, make_tiny_data, go):
    """Merged and own model are one: another number would come from other samples, augmentation or mode."""
    experiment = make_experiment("fedga", data=make_tiny_data(("a", "held")), model="cnn-2")
    prepare = replace(experiment.prepare, augmentation="standard")
    _, records = go(replace(experiment, prepare=prepare), rounds=3)
    gaps = gaps_of(records)
    assert gaps == [{"a": 0.0}, {"a": 0.0}]


SIZES = st.lists(st.floats(0.01, 1), min_size=1, max_size=8)


@given(SIZES, st.randoms(use_true_random=False), st.floats(0, 0.99), st.booleans())
def test_weights_stay_weights(sizes, random, step, centred):
    weights = torch.tensor(sizes, dtype=torch.float64)
    gaps = torch.tensor([random.uniform(-2, 3) for _ in sizes], dtype=torch.float64)
    moved = adjust_weights(weights, gaps, step=step, centred=centred)
    assert (moved >= 0).all() and torch.isclose(moved.sum(), weights.sum())
    if step == 0 or (len(sizes) == 1 and centred):
        assert torch.equal(moved, weights)


def test_the_worse_served_client_gains():
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    gaps = torch.tensor([0.1, 0.2, 0.6], dtype=torch.float64)
    moved = adjust_weights(weights, gaps, step=0.3)
    torch.testing.assert_close(moved, 1 / 3 + 0.1 * torch.tensor([-2 / 3, -1 / 3, 1.0]).double())
    as_released = adjust_weights(weights, gaps, step=0.3, centred=False)
    raw = 1 / 3 + 0.1 * torch.tensor([1 / 6, 1 / 3, 1.0]).double()
    torch.testing.assert_close(as_released, raw / raw.sum())


def test_equal_gaps_change_nothing():
    weights = torch.tensor([0.2, 0.8], dtype=torch.float64)
    assert torch.equal(adjust_weights(weights, torch.zeros(2), step=0.5), weights)
    assert torch.equal(adjust_weights(weights, torch.ones(2), step=0.5), weights)
    assert torch.equal(adjust_weights(weights, torch.zeros(2), step=0.5, centred=False), weights)


def server_work(
    clients: str, gaps: list[float | None], *, round: int, state: dict | None = None
) -> ServerWork:
    flat = FlatState(torch.nn.Linear(3, 2))
    number = len(clients)
    updates = Updates(
        clients=tuple(clients),
        rows=torch.randn(number, flat.layout.size, generator=torch.Generator().manual_seed(round)),
        samples=torch.tensor([10.0 * (ord(client) - 96) for client in clients], dtype=torch.float64),
        steps=torch.ones(number, dtype=torch.float64),
        extras=tuple({} if gap is None else {GAP: torch.tensor(gap).double()} for gap in gaps),
        layout=flat.layout,
    )
    state = {} if state is None else state
    return ServerWork(round=round, rounds=10, seed=0, weights=flat.read(), updates=updates, state=state)


def weight_of(state: dict, client: str) -> float:
    return float(state[f"weight of {client}"])


def test_absent_clients_keep_their_weights_and_the_present_share_theirs():
    method, state = make_method("fedga", {"start": "samples"}), {}
    method.server(server_work("abc", [None] * 3, round=1, state=state))
    method.server(server_work("abc", [0.1, 0.5, 0.3], round=2, state=state))
    before = dict(state)
    work = server_work("cad", [0.2, -0.4, None], round=3, state=state)
    merged = method.server(work)
    assert weight_of(state, "b") == weight_of(before, "b") and weight_of(state, "d") == 40
    assert weight_of(state, "c") > weight_of(before, "c") and weight_of(state, "a") < weight_of(before, "a")
    assert weight_of(state, "a") + weight_of(state, "c") == pytest.approx(
        weight_of(before, "a") + weight_of(before, "c")
    )
    shares = torch.tensor([weight_of(state, client) for client in "cad"])
    torch.testing.assert_close(merged, weighted_mean(work.updates.rows, shares, layout=work.updates.layout))
    assert sum(work.diagnostics["client_weights"].values()) == pytest.approx(1)


def test_the_step_falls_linearly_over_the_rounds_of_the_run():
    moves = []
    for number in (2, 6, 10):
        state: dict = {}
        make_method("fedga").server(server_work("ab", [0.0, 1.0], round=number, state=state))
        moves.append(weight_of(state, "b") - 1)
    assert moves == pytest.approx([0.2 * 0.9, 0.2 * 0.5, 0.2 * 0.1])
    assert remaining_part(ServerWork(round=7, seed=0, weights=torch.empty(0), updates=None)) == 1


@pytest.mark.parametrize("risk", ["loss", "error"])
def test_a_gap_says_how_much_worse_the_received_model_is_than_the_own(risk, make_experiment):
    """Both risks are to be low, so that a worse model has a positive gap; an accuracy would turn the sign."""
    plan = LocalTrainingConfig(epochs=20, batch_size=4, lr=0.05, momentum=0.5)
    experiment = make_experiment("fedga", settings={"risk": risk}, plan=plan)
    space, state = Workspace(experiment), {}
    untrained = space.flat.read()
    own = space.train_client(0, state, RoundStart(1, untrained))
    assert not own.extras
    trained = own.weights.clone()
    gap = float(space.train_client(0, state, RoundStart(2, untrained)).extras[GAP])
    samples = Samples(experiment.data, experiment.federation[0].validation)
    risks = []
    for weights in (untrained, trained):
        space.flat.load(weights)
        batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
        outputs = space.module(batch.inputs).detach()
        wrong = (outputs.argmax(dim=1) != batch.targets).double().mean()
        risks.append(float(F.cross_entropy(outputs, batch.targets) if risk == "loss" else wrong))
    assert gap == pytest.approx(risks[0] - risks[1], abs=1e-5)
    assert gap > 0.1


def test_the_gap_can_be_measured_on_training_samples(make_experiment, go):
    runs = {}
    for place in ("training", "validation"):
        _, records = go(make_experiment("fedga", settings={"gap_on": place}), place)
        runs[place] = gaps_of(records)[-1]
    assert runs["training"] != runs["validation"]


def regression_data() -> DataSet:
    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(80, 5)).astype(np.float32)
    return DataSet(
        name="rows",
        task="regression",
        inputs=inputs,
        targets=inputs.sum(axis=1),
        domain_of=np.repeat(np.arange(4), 20),
        domains=("a", "b", "c", "held"),
    )


def test_regression_compares_squared_errors(make_experiment, go):
    checkpoint, records = go(make_experiment("fedga", data=regression_data(), model="mlp"), rounds=3)
    assert torch.isfinite(checkpoint.weights).all()
    assert any(abs(gap) > 1e-6 for gap in gaps_of(records)[-1].values())
    with pytest.raises(UsageError, match="regression"):
        go(make_experiment("fedga", data=regression_data(), model="mlp", settings={"risk": "error"}), "error")


def test_a_client_without_validation_samples_is_told_what_to_do(make_experiment, make_tiny_data, go):
    data, partition = make_tiny_data(per_class=2), PartitionConfig(kind="iid", clients_per_domain=3)
    with pytest.raises(UsageError, match="gap_on=training"):
        go(make_experiment("fedga", data=data, partition=partition))
    go(make_experiment("fedga", data=data, partition=partition, settings={"gap_on": "training"}), "other")


@pytest.mark.parametrize("step", [-0.1, 1])
def test_wrong_steps_are_refused(step):
    with pytest.raises(UsageError, match="step"):
        make_method("fedga", {"step": step})
