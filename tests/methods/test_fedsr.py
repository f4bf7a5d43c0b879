"""FedSR and its halves against the algorithm written out; what is shared, what is drawn, what is served."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributions
from torch.nn import functional as F

from unseen.data import Samples
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedsr.representation import ClassReference, gaussian_divergence, representation_length
from unseen.models import FlatState
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.seeding import torch_generator
from unseen.training import LocalTrainingConfig, batch_positions

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.02, momentum=0.5)
PLAIN = {"l2r_weight": 0, "cmi_weight": 0, "probabilistic": False}


def literal_loss(parts, batch, noise, *, l2r, cmi, squared):
    """Cross-entropy + l2r E||z||^2 + cmi E KL(p(z|x) || r(z|y)), with torch's own distributions."""
    mu = parts.network.features(batch.inputs)
    z, p = mu, None
    if parts.spread is not None:
        sigma = torch.log(1 + torch.exp(mu @ parts.spread.weight.T + parts.spread.bias))
        z, p = mu + sigma * torch.randn(mu.shape, generator=noise), (mu, sigma)
    loss = F.cross_entropy(parts.network.head(z), batch.targets)
    lengths = [(row**2).sum() if squared else (row**2).sum().sqrt() for row in z]
    loss = loss + l2r * sum(lengths) / len(lengths)
    if cmi:
        c, (mu, sigma) = parts.reference.scale, p
        terms = []
        for number, label in enumerate(batch.targets.tolist()):
            r_sigma = torch.log(1 + torch.exp(parts.reference.raw_deviation[label]))
            r = distributions.Normal(parts.reference.mean[label], r_sigma)
            terms.append(
                distributions.kl_divergence(distributions.Normal(c * mu[number], c * sigma[number]), r).sum()
            )
        loss = loss + cmi * sum(terms) / len(terms)
    return loss


def literal_run(experiment, rounds, **terms):
    """Every client descends on the loss from the server's model; everything is averaged by samples."""
    module = experiment.method.build(copy.deepcopy(experiment.network), seed=experiment.seed)
    plan = experiment.plan
    for number in range(1, rounds + 1):
        states, sizes = [], []
        for client in experiment.federation:
            local = copy.deepcopy(module).train()
            optimiser = torch.optim.SGD(local.parameters(), lr=plan.lr, momentum=plan.momentum)
            samples = Samples(experiment.data, client.train)
            order = torch_generator(experiment.seed, "training: order", client.name, number)
            noise = torch_generator(experiment.seed, "fedsr: representation", client.name, number)
            for _ in range(plan.epochs):
                for positions in batch_positions(len(samples), plan.batch_size, generator=order):
                    batch = experiment.prepare(samples.gather(positions))
                    optimiser.zero_grad()
                    literal_loss(local, batch, noise, **terms).backward()
                    optimiser.step()
            states.append(local.state_dict())
            sizes.append(len(samples))
        merged = {
            key: sum(n / sum(sizes) * state[key] for n, state in zip(sizes, states, strict=True))
            for key in states[0]
        }
        module.load_state_dict(merged)
    return FlatState(module).read()


@pytest.mark.parametrize(
    ("method", "settings", "terms"),
    [
        ("fedsr", {}, {"l2r": 0.01, "cmi": 0.001, "squared": False}),
        ("fedsr", {"l2r_weight": 0.3, "squared": True}, {"l2r": 0.3, "cmi": 0.001, "squared": True}),
        ("fedsr", {"cmi_weight": 0.05, "bottleneck": True}, {"l2r": 0.01, "cmi": 0.05, "squared": False}),
        ("fedl2r", {"l2r_weight": 0.1}, {"l2r": 0.1, "cmi": 0, "squared": False}),
        ("fedcmi", {"cmi_weight": 0.05}, {"l2r": 0, "cmi": 0.05, "squared": True}),
    ],
)  # fmt: skip
def test_equals_the_algorithm_written_out(method, settings, terms, make_experiment, make_tiny_data, go):
    def experiment(name, chosen):
        return make_experiment(name, settings=chosen, plan=PLAN, data=make_tiny_data(missing=("b", 1)))

    expected = literal_run(experiment(method, settings), 2, **terms)
    ours, _ = go(experiment(method, settings), rounds=2)
    without = {key: 0 for key in ("l2r_weight", "cmi_weight") if hasattr(make_method(method).settings, key)}
    bare, _ = go(experiment(method, settings | without), "bare", rounds=2)
    torch.testing.assert_close(ours.weights, expected, rtol=2e-3, atol=5e-5)
    shared = min(len(bare.weights), len(expected))
    assert (bare.weights - ours.weights[:shared]).abs().max() > 20 * (ours.weights - expected).abs().max()


@pytest.mark.parametrize("model", ["mnist-cnn", "cnn-2"])
def test_without_terms_and_draws_it_is_fedavg_to_the_last_bit(model, make_experiment, go):
    """cnn-2 has dropout, whose draws must be those of FedAvg."""
    ours, _ = go(make_experiment("fedsr", model=model, settings=PLAIN), rounds=2)
    plain, _ = go(make_experiment("fedavg", model=model), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)


def test_extra_parts_leave_the_start_of_the_network_as_it_is(make_experiment):
    plain = make_experiment("fedavg").network.state_dict()
    module = Workspace(make_experiment("fedsr")).module
    tensors = module.state_dict()
    assert all(torch.equal(tensors[f"network.{name}"], value) for name, value in plain.items())
    extra = {name for name in tensors if not name.startswith("network.")}
    assert extra == {
        "spread.weight", "spread.bias", "reference.mean", "reference.raw_deviation", "reference.scale",
    }  # fmt: skip
    assert not tensors["reference.mean"].any() and tensors["reference.scale"] == 1


def test_each_term_acts_and_is_recorded(make_experiment, go, rounds_of):
    runs = {
        "both": {},
        "no l2r": {"l2r_weight": 0},
        "no cmi": {"cmi_weight": 0},
        "no draws": {"cmi_weight": 0, "probabilistic": False},
        "nothing": PLAIN,
    }
    heads, told = {}, {}
    for name, settings in runs.items():
        experiment = make_experiment("fedsr", settings=settings)
        checkpoint, records = go(experiment, name, rounds=2)
        layout = Workspace(experiment).flat.layout
        heads[name] = layout.tensors(checkpoint.weights)["network.head.weight"]
        told[name] = rounds_of(records)[-1]["diagnostics"]
    assert set(told["both"]) == {"l2r_term", "cmi_term", "mean_deviation", "reference_scale"}
    assert set(told["no l2r"]) == {"cmi_term", "mean_deviation", "reference_scale"}
    assert set(told["no cmi"]) == {"l2r_term", "mean_deviation"}
    assert set(told["no draws"]) == {"l2r_term"} and not told["nothing"]
    assert all(min(told["both"][name].values()) > 0.01 for name in told["both"])
    names = list(heads)
    for one in names:
        for other in names[: names.index(one)]:
            assert not torch.allclose(heads[one], heads[other], atol=1e-6), (one, other)


def test_strong_terms_do_what_they_are_for(make_experiment, go, rounds_of):
    def last(**settings):
        _, records = go(make_experiment("fedsr", settings=settings), str(settings), rounds=3)
        diagnostics = rounds_of(records)[-1]["diagnostics"]
        return {name: sum(values.values()) for name, values in diagnostics.items()}

    weak = last(squared=True)
    assert last(l2r_weight=0.2, squared=True)["l2r_term"] < 0.8 * weak["l2r_term"]
    assert last(l2r_weight=0.2)["l2r_term"] < last()["l2r_term"]
    assert last(cmi_weight=0.1)["cmi_term"] < 0.8 * weak["cmi_term"]


def test_the_divergence_is_that_of_gaussians():
    generator = torch.Generator().manual_seed(0)
    mean, other = torch.randn(2, 6, 5, generator=generator)
    deviation, other_deviation = torch.rand(2, 6, 5, generator=generator) + 0.1
    exact = distributions.kl_divergence(
        distributions.Normal(mean, deviation), distributions.Normal(other, other_deviation)
    ).sum(1)
    torch.testing.assert_close(gaussian_divergence(mean, deviation, other, other_deviation), exact)
    assert gaussian_divergence(mean, deviation, mean, deviation).abs().max() < 1e-6


def test_a_factor_below_zero_has_a_divergence_too():
    """The released code takes the logarithm of C sigma, which is nan for C < 0."""
    reference = ClassReference(2, 3, scale=True)
    generator = torch.Generator().manual_seed(0)
    mean, deviation = torch.randn(4, 3, generator=generator), torch.rand(4, 3, generator=generator) + 0.1
    targets = torch.tensor([0, 1, 1, 0])
    with torch.no_grad():
        reference.scale.fill_(-2.0)
    mirrored = distributions.Normal(-2 * mean, 2 * deviation)
    expected = distributions.kl_divergence(
        mirrored, distributions.Normal(reference.mean[targets], F.softplus(torch.ones(4, 3)))
    )
    torch.testing.assert_close(
        reference(mean, deviation, targets), expected.sum(1).mean(), rtol=1e-4, atol=1e-5
    )
    assert ClassReference(2, 3, scale=False)(mean, deviation, targets) != reference(mean, deviation, targets)


def test_the_length_is_squared_if_told_so():
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    assert representation_length(z, squared=True) == 12.5
    plain = representation_length(z, squared=False)
    assert plain == 2.5
    plain.backward()
    assert torch.isfinite(z.grad).all()


def test_the_representation_is_drawn_around_the_mean_in_training_and_is_the_mean_in_use(make_experiment):
    module = Workspace(make_experiment("fedsr")).module
    inputs = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)).expand(4000, -1, -1, -1)
    with torch.no_grad():
        z, mean, deviation = module.represent(inputs, noise=torch.Generator().manual_seed(0))
    torch.testing.assert_close(z.mean(0), mean[0], rtol=0, atol=0.06)
    torch.testing.assert_close(z.std(0), deviation[0], rtol=0.08, atol=0)
    assert deviation.min() > 0.1 and z.std() > 0.1
    network = make_method("fedsr").deployed(module)
    assert torch.equal(network(inputs[:2]), network(inputs[:2]))
    assert torch.equal(network(inputs[:2]), network.head(network.features(inputs[:2])))


def test_the_shared_reference_is_learnt_by_all(make_experiment, make_tiny_data, go):
    experiment = make_experiment("fedsr", data=make_tiny_data(missing=("b", 1)))
    checkpoint, records = go(experiment, rounds=2)
    tensors = Workspace(experiment).flat.layout.tensors(checkpoint.weights)
    assert all((row.abs() > 0).any() for row in tensors["reference.mean"])
    assert all((row != 1).any() for row in tensors["reference.raw_deviation"])
    assert tensors["reference.scale"] != 1
    assert "reference distributions of the classes" in experiment.method.sends
    (first, *_) = (record for record in records.entries if record["event"] == "round")
    assert first["bytes_up"] == 3 * 4 * len(checkpoint.weights)
    assert not checkpoint.client_states


def test_a_local_reference_stays_at_its_client_and_survives_a_restart(make_experiment, go, tmp_path):
    strong = {"cmi_weight": 0.1}
    settings = strong | {"reference": "local"}
    experiment = make_experiment("fedsr", settings=settings)
    whole, _ = go(experiment, "whole", rounds=3)
    go(make_experiment("fedsr", settings=settings), "parts", rounds=1)
    resumed, _ = go(make_experiment("fedsr", settings=settings), "parts", rounds=3)
    assert torch.equal(whole.weights, resumed.weights)
    names = {entry.name.split(".")[0] for entry in Workspace(experiment).flat.layout.entries}
    assert names == {"network", "spread"}
    store = StateStore(RunFolder(tmp_path / "whole").client_states, whole.client_states)
    references = [store.read(client)["reference"] for client in ("a", "b", "c")]
    assert len(references[0]) == 2 * 3 * 100 + 1
    assert not torch.equal(references[0], references[1])
    shared, _ = go(make_experiment("fedsr", settings=strong), "shared", rounds=3)
    assert not torch.allclose(shared.weights[: len(whole.weights)], whole.weights, atol=1e-6)


def test_a_local_reference_goes_on_where_it_stood(make_experiment):
    workspace = Workspace(make_experiment("fedsr", settings={"reference": "local"}))
    start, state = RoundStart(1, workspace.flat.read()), {}
    fresh = workspace.train_client(0, state, start)
    state["reference"] = state["reference"] + 3
    far = workspace.train_client(0, state, start)
    assert far.diagnostics["reference_scale"] == pytest.approx(
        fresh.diagnostics["reference_scale"] + 3, abs=0.5
    )
    assert far.diagnostics["cmi_term"] != pytest.approx(fresh.diagnostics["cmi_term"], rel=0.1)


@pytest.mark.parametrize("changed", [{"squared": True}, {"scale": False}, {"weighting": "uniform"}])
def test_settings_act(changed, make_experiment, make_tiny_data, go):
    def network_part(settings, name):
        experiment = make_experiment("fedsr", settings=settings, data=make_tiny_data(missing=("b", 1)))
        checkpoint, _ = go(experiment, name)
        return Workspace(experiment).flat.layout.tensors(checkpoint.weights)["network.head.weight"]

    strong = {"cmi_weight": 0.1}
    assert not torch.allclose(network_part(strong, "one"), network_part(strong | changed, "two"), atol=1e-6)


@pytest.mark.parametrize("method", ["fedsr", "fedcmi"])
def test_regression_is_refused_where_classes_are_needed(method, make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match="a regression has no classes: use --method fedl2r"):
        go(make_experiment(method, data=tiny_regression))


def test_regression_works_without_the_reference(make_experiment, tiny_regression, go, rounds_of):
    _, records = go(make_experiment("fedsr", data=tiny_regression, settings={"cmi_weight": 0}))
    assert set(rounds_of(records)[-1]["diagnostics"]) == {"l2r_term", "mean_deviation"}


@pytest.mark.parametrize(
    "settings", [{"l2r_weight": -1}, {"cmi_weight": float("nan")}, {"probabilistic": False}]
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method("fedsr", settings)
