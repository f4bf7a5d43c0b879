"""FPL and FedProto against their algorithms written out, and the prototypes that they exchange."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from literal_clients import layout_of, mean_state, samples_of, start_of, visit
from test_finch import literal_finch
from torch.nn import functional

from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fpl.prototypes import CLASSES, COUNTS, MEANS, PROTOTYPES, GlobalPrototypes
from unseen.training import LocalTrainingConfig, Update

METHODS = ("fpl", "fedproto")
OFF = {"fpl": {"contrast": 0, "regularization": 0}, "fedproto": {"strength": 0}}
PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.02, momentum=0.5)


def contrast_of(f, own, everything, tau=0.02):
    """InfoNCE of one sample: all prototypes of its class against all prototypes."""

    def similar(p):
        return math.e ** (f @ p / (f.norm() * p.norm()) / tau)

    return -torch.log(sum(similar(p) for p in own) / sum(similar(p) for p in everything))


def distance_of(f, own):
    """MSE of one sample to the mean of its class's prototypes."""
    return (f - sum(own) / len(own)).square().mean()


def literal_loss(method, prototypes, collected, last_epoch_from):
    """CE plus the terms; features of the last epoch are kept by class."""
    steps = iter(range(10**6))

    def loss(module, batch):
        features = module.features(batch.inputs)
        value = functional.cross_entropy(module.head(features), batch.targets)
        terms = []
        for f, label in zip(features, batch.targets.tolist(), strict=True):
            if label in prototypes:
                everything = [p for each in prototypes.values() for p in each]
                contrast = contrast_of(f, prototypes[label], everything) if method == "fpl" else 0
                terms.append(contrast + distance_of(f, prototypes[label]))
        if next(steps) >= last_epoch_from:
            for f, label in zip(features.detach(), batch.targets.tolist(), strict=True):
                collected.setdefault(label, []).append(f)
        return value + sum(terms) / len(features)

    return loss


def literal_rounds(experiment, method, rounds):
    """The released algorithm: prototypes of the last epoch, clustered or averaged class by class."""
    state, prototypes = start_of(experiment), {}
    clients = [client.name for client in experiment.federation]
    for number in range(1, rounds + 1):
        visits, sent = [], []
        for client in clients:
            collected = {}
            steps = -(-len(samples_of(experiment, client)) // experiment.plan.batch_size)
            loss = literal_loss(method, prototypes, collected, (experiment.plan.epochs - 1) * steps)
            visits.append(visit(experiment, client, round=number, start=state, loss=loss))
            sent.append({label: sum(kept) / len(kept) for label, kept in collected.items()})
        state = mean_state([each.state for each in visits], [each.samples for each in visits])
        prototypes = {}
        for label in range(3):
            points = torch.stack([each[label] for each in sent if label in each])
            parts = literal_finch(points.double()) if method == "fpl" else [set(range(len(points)))]
            prototypes[label] = [points[sorted(part)].mean(0) for part in parts]
    return state, prototypes


@pytest.mark.parametrize("method", METHODS)
def test_equals_the_released_algorithm(method, make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment(method, plan=PLAN), rounds=3)
    literal = make_uneven_experiment(method, plan=PLAN)
    state, prototypes = literal_rounds(literal, method, rounds=3)
    plain, _ = go(make_uneven_experiment("fedavg", plan=PLAN), "plain", rounds=3)
    layout = layout_of(literal)
    found = layout.tensors(ours.weights)
    worst = max(
        (found[name] - value).abs().max() for name, value in state.items() if value.is_floating_point()
    )
    assert worst < 1e-3
    assert (ours.weights - plain.weights).abs().max() > 10 * worst
    assert ours.server[CLASSES].tolist() == [label for label in prototypes for _ in prototypes[label]]
    expected = torch.stack([p for each in prototypes.values() for p in each])
    torch.testing.assert_close(ours.server[MEANS], expected, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_without_its_terms_it_is_fedavg_to_the_last_bit(method, make_uneven_experiment, go):
    ours, _ = go(make_uneven_experiment(method, settings=OFF[method]), "ours", rounds=2)
    plain, _ = go(make_uneven_experiment("fedavg"), "plain", rounds=2)
    assert torch.equal(ours.weights, plain.weights)


@pytest.mark.parametrize("method", METHODS)
def test_terms_act_from_the_second_round_on(method, make_uneven_experiment, go, rounds_of):
    settings = {"temperature": 0.5} if method == "fpl" else {}
    _, records = go(make_uneven_experiment(method, settings=settings), rounds=2)
    first, second = rounds_of(records)
    names = {"fpl": {"prototype_contrast", "prototype_distance"}, "fedproto": {"prototype_distance"}}[method]
    assert set(first["diagnostics"]) == {"prototypes_per_class"}
    assert set(second["diagnostics"]) == names | {"prototypes_per_class"}
    for name in names:
        assert min(second["diagnostics"][name].values()) > 1e-4


def received(means, classes):
    return {MEANS: torch.tensor(means), CLASSES: torch.tensor(classes)}


def test_terms_of_clusters_equal_the_sums_over_samples():
    """Class 1 has two clusters, class 2 none."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 4, generator=generator)
    prototypes = GlobalPrototypes(
        {MEANS: means, CLASSES: torch.tensor([0, 1, 1])}, classes=3, device=torch.device("cpu")
    )
    features, targets = torch.randn(5, 4, generator=generator), torch.tensor([0, 1, 2, 1, 0])
    own = {0: [means[0]], 1: [means[1], means[2]]}
    known = [(f, own[y]) for f, y in zip(features, targets.tolist(), strict=True) if y in own]
    for tau in (0.02, 0.5):
        expected = sum(
            contrast_of(f.double(), [p.double() for p in each], means.double(), tau) for f, each in known
        )
        found = prototypes.contrast(features, targets, temperature=tau)
        torch.testing.assert_close(found.double(), expected / 5, rtol=1e-4, atol=1e-5)
    expected = sum(distance_of(f, each) for f, each in known) / 5
    torch.testing.assert_close(prototypes.squared_distance(features, targets), expected)


def test_a_batch_without_known_classes_gives_zero_with_a_gradient():
    prototypes = GlobalPrototypes(received([[1.0, 0.0]], [0]), classes=3, device=torch.device("cpu"))
    features, targets = torch.ones(2, 2, requires_grad=True), torch.tensor([1, 2])
    total = prototypes.contrast(features, targets, temperature=0.02)
    total = total + prototypes.squared_distance(features, targets)
    total.backward()
    assert float(total.detach()) == 0 and not features.grad.any()


def test_prototypes_are_weighted_as_chosen():
    prototypes, counts = torch.tensor([[0.0, 4.0], [8.0, 0.0]]).double(), torch.tensor([3, 1])
    uniform = make_method("fedproto").merge_prototypes(prototypes, counts)
    assert uniform.tolist() == [[4.0, 2.0]]
    by = make_method("fedproto", {"prototype_weighting": "samples"}).merge_prototypes(prototypes, counts)
    assert by.tolist() == [[2.0, 3.0]]


def sent_by_b(experiment):
    workspace = Workspace(experiment)
    return workspace, workspace.train_client(1, {}, RoundStart(1, workspace.flat.read()))


@pytest.mark.parametrize("sharpness", ["none", "sam"])
def test_training_prototypes_hold_every_sample_of_the_last_epoch_once(sharpness, make_uneven_experiment):
    """With hardly any learning, they are means of the received model's features in training mode."""
    plan = LocalTrainingConfig(epochs=3, batch_size=1000, lr=1e-12, momentum=0.0, sharpness=sharpness)
    experiment = make_uneven_experiment("fpl", plan=plan)
    workspace, update = sent_by_b(experiment)
    samples = samples_of(experiment, "b")
    batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
    features = workspace.module.train().features(batch.inputs)
    assert update.extras[COUNTS].tolist() == torch.bincount(batch.targets, minlength=3).tolist()
    for label in (0, 2):
        mean = features[batch.targets == label].mean(0)
        torch.testing.assert_close(update.extras[PROTOTYPES][label], mean, rtol=1e-4, atol=1e-5)
    assert not update.extras[PROTOTYPES][1].any()


def test_prototypes_of_the_trained_model_are_means_in_evaluation_mode(make_uneven_experiment):
    experiment = make_uneven_experiment("fpl", settings={"prototypes_from": "trained"})
    workspace, update = sent_by_b(experiment)
    samples = samples_of(experiment, "b")
    workspace.flat.load(update.weights)
    batch = experiment.prepare(samples.gather(torch.arange(len(samples))))
    features = workspace.module.eval().features(batch.inputs)
    mean = features[batch.targets == 2].mean(0)
    torch.testing.assert_close(update.extras[PROTOTYPES][2], mean, rtol=1e-4, atol=1e-5)


def test_counts_that_no_samples_have_are_refused(make_uneven_experiment):
    experiment = make_uneven_experiment("fedproto")
    _, update = sent_by_b(experiment)

    def reason(**changes) -> str:
        changed: Update = replace(update, extras={**update.extras, **changes})
        return experiment.method.explain_unusable_extras(changed, plan=experiment.plan, outputs=3, own=[1])

    assert reason() == ""
    for counts in ([-1, 2, 2], [999, 0, 0]):
        assert "counts" in reason(**{COUNTS: torch.tensor(counts)})
    alone = replace(update, extras={COUNTS: update.extras[COUNTS]})
    assert "alone" in experiment.method.explain_unusable_extras(alone, plan=PLAN, outputs=3, own=[1])


@pytest.mark.parametrize(
    ("method", "settings"),
    [("fpl", {"contrast": -1}), ("fpl", {"temperature": 0}), ("fedproto", {"strength": -1})],
)
def test_impossible_settings_are_refused(method, settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        make_method(method, settings)


@pytest.mark.parametrize("method", METHODS)
def test_regression_is_refused(method, make_experiment, tiny_regression, go):
    with pytest.raises(UsageError, match="regression"):
        go(make_experiment(method, data=tiny_regression), rounds=1)
