"""FedADG's privacy, its memory, its ablations and its settings."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from unseen.data import DataSet
from unseen.engine import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.fedadg.fedadg_networks import draw_fixed_reference, make_discriminator
from unseen.methods.fedadg.readings import READINGS
from unseen.models import FlatState, InputSpec, build_model
from unseen.training import LocalTrainingConfig

PLAN = LocalTrainingConfig(epochs=2, batch_size=4, lr=0.05, momentum=0.5)


def _network_weights(experiment, checkpoint):
    flat = Workspace(experiment).flat
    entries = [entry for entry in flat.layout.entries if entry.name.startswith("network.")]
    return torch.cat([entry.view(checkpoint.weights).flatten() for entry in entries])


def _train(workspace, start, state, *, position=0, round=1):
    return workspace.train_client(position, state, RoundStart(round, start))


def _discriminator(experiment, state):
    flat = FlatState(make_discriminator(experiment.network, experiment.method.settings))
    flat.load(state["discriminator"])
    return flat


def test_the_discriminator_is_not_sent(make_experiment, go):
    experiment = make_experiment("fedadg")
    network = sum(p.numel() for p in experiment.network.parameters())
    workspace = Workspace(experiment)
    names = [entry.name for entry in workspace.flat.layout.entries]
    assert {name.split(".")[0] for name in names} == {"network", "generator"}
    generator = sum(p.numel() for p in workspace.module.generator.parameters())
    feature, noise, classes = 100, 50, 3
    assert generator == (noise + classes + 1) * feature + (feature + 1) * feature
    _, records = go(experiment, rounds=1)
    record = next(entry for entry in records.entries if entry["event"] == "round")
    assert record["bytes_up"] == 3 * 4 * (network + generator)


def test_a_discriminator_is_its_clients_own_and_goes_on_where_it_stood(make_experiment):
    experiment = make_experiment("fedadg", plan=PLAN)
    workspace = Workspace(experiment)
    start = workspace.flat.read()
    first, second = {}, {}
    _train(workspace, start, first, position=0)
    _train(workspace, start, second, position=1)
    one, other = _discriminator(experiment, first).module, _discriminator(experiment, second).module
    assert not torch.equal(one.projection, other.projection)
    assert not torch.equal(one.hidden.weight, other.hidden.weight)
    carried = {key: value.clone() for key, value in first.items()}
    with_memory = _train(workspace, start, carried, round=2).weights
    without = _train(workspace, start, {}, round=2).weights
    assert not torch.equal(with_memory, without)
    later = _discriminator(experiment, carried).module
    assert torch.equal(later.projection, one.projection)
    assert not torch.equal(later.hidden.weight, one.hidden.weight)


def test_the_generator_learns_and_starts_alike_everywhere(make_experiment):
    experiment = make_experiment("fedadg", plan=PLAN)
    workspace = Workspace(experiment)
    start = workspace.flat.read()
    assert torch.equal(start, Workspace(make_experiment("fedadg")).flat.read())
    update = _train(workspace, start, {})
    for entry in workspace.flat.layout.entries:
        if entry.name.startswith("generator."):
            assert not torch.equal(entry.view(update.weights), entry.view(start)), entry.name


def test_the_warm_up_leaves_generator_and_discriminator_alone(make_experiment):
    settings = {"warm_up_epochs": 2}
    experiment = make_experiment("fedadg", settings=settings, plan=replace(PLAN, weight_decay=0.1))
    workspace = Workspace(experiment)
    start = workspace.flat.read()
    state = {}
    update = _train(workspace, start, state)
    for entry in workspace.flat.layout.entries:
        same = torch.equal(entry.view(update.weights), entry.view(start))
        assert same is entry.name.startswith("generator."), entry.name
    again = {}
    _train(workspace, start, again, round=2)
    assert torch.equal(state["discriminator"], again["discriminator"])


def test_clients_count_alike_whatever_their_size(make_experiment, make_tiny_data):
    experiment = make_experiment("fedadg", data=make_tiny_data(missing=("b", 1)))
    workspace = Workspace(experiment)
    start = workspace.flat.read()
    updates = [_train(workspace, start, {}, position=position) for position in range(3)]
    assert len({update.samples for update in updates}) > 1
    from unseen.aggregation import ServerWork, Updates

    rows = torch.stack([update.weights for update in updates])
    merged = experiment.method.server(
        ServerWork(
            round=1,
            seed=0,
            weights=start,
            updates=Updates(
                clients=("a", "b", "c"),
                rows=rows,
                samples=torch.tensor([float(update.samples) for update in updates]),
                steps=torch.ones(3),
                extras=({}, {}, {}),
                layout=workspace.flat.layout,
            ),
        )
    )
    torch.testing.assert_close(merged, rows.mean(dim=0))


def test_every_round_tells_scores_and_losses_of_every_client(make_experiment, go):
    _, records = go(make_experiment("fedadg", plan=PLAN), rounds=1)
    said = next(entry for entry in records.entries if entry["event"] == "round")["diagnostics"]
    assert set(said) == {
        "score_extracted",
        "score_generated",
        "extractor_loss",
        "classification_loss",
        "discriminator_loss",
        "generator_loss",
    }
    for values in said.values():
        assert set(values) == {"a", "b", "c"}
    assert all(
        0 < score < 1 for key in ("score_extracted", "score_generated") for score in said[key].values()
    )


@pytest.fixture
def outcome(make_experiment, go):
    def run(**settings):
        experiment = make_experiment("fedadg", settings=settings, plan=PLAN)
        name = "-".join(f"{key}={value}" for key, value in settings.items()) or "full"
        checkpoint, records = go(experiment, name, rounds=2)
        return _network_weights(experiment, checkpoint), records

    return run


@pytest.mark.parametrize(
    "ablation",
    [
        {"reference": "none"},
        {"reference": "normal"},
        {"reference": "uniform"},
        {"reference": "laplace"},
        {"one_hot": False},
        {"projection": False},
        {"reading": "printed"},
        {"generator_goal": "recognised"},
        {"discriminator_loss": "equation-2"},
        {"order": "discriminator-first"},
        {"rate_warm_up": 3},
        {"one_hot_value": 0.7},
        {"trained_projection": True},
        {"projected_label": True},
        {"classifier_layers": 2},
        {"generator_output": "linear"},
        {"label_smoothing": 0},
        {"adversarial_weight": 0.4},
    ],
    ids=str,
)
def test_each_option_changes_the_deployed_network(outcome, ablation):
    full, _ = outcome()
    changed, _ = outcome(**ablation)
    assert torch.isfinite(changed).all()
    assert len(full) != len(changed) or (full - changed).abs().max() > 1e-5


def test_without_its_term_the_network_is_that_of_no_alignment(outcome):
    """Only the adversarial term couples F and C to the rest: at weight 0 they train as if alone."""
    uncoupled, records = outcome(adversarial_weight=0.0)
    alone, bare = outcome(reference="none")
    assert torch.equal(uncoupled, alone)
    rounds = [entry for entry in records.entries if entry["event"] == "round"]
    plain = [entry for entry in bare.entries if entry["event"] == "round"]
    assert rounds[0]["diagnostics"] and not plain[0]["diagnostics"]
    assert rounds[0]["bytes_up"] > plain[0]["bytes_up"]


def test_without_alignment_it_is_fedavg(make_experiment, make_tiny_data, go):
    """Epochs of warm-up alone, which draw an order of their own, so that one batch holds all samples."""
    data, plan = make_tiny_data(missing=("b", 1)), replace(PLAN, batch_size=99)
    settings = {"reference": "none", "label_smoothing": 0.0, "adversarial_epochs": 0}
    settings |= {"warm_up_epochs": PLAN.epochs}
    experiment = make_experiment("fedadg", data=data, plan=plan, settings=settings)
    checkpoint, _ = go(experiment, rounds=2)
    plain = make_experiment("fedavg", data=data, plan=plan, settings={"weighting": "uniform"})
    expected, _ = go(plain, "plain", rounds=2)
    found = _network_weights(experiment, checkpoint)
    torch.testing.assert_close(found, expected.weights, rtol=1e-5, atol=1e-6)


def test_a_reading_can_go_without_its_rising_rates(make_experiment):
    """At 0 the rates of a released program are those of the run, so that its network moves much further."""

    def distance(**settings):
        experiment = make_experiment("fedadg", plan=PLAN, settings={"reading": "released-pacs", **settings})
        workspace = Workspace(experiment)
        start = workspace.flat.read()
        return float((_train(workspace, start, {}).weights - start).norm())

    assert distance(rate_warm_up=0) > 10 * distance()
    assert make_method("fedadg", {"rate_warm_up": 0}).settings.chosen.rate_warm_up == 0


@pytest.mark.parametrize("per", ["epoch", "step"])
def test_both_phases_are_one_round_to_a_schedule(per, make_experiment, make_tiny_data, go):
    """The rate goes on in the adversarial phase where the warm-up left it; one batch holds all samples."""
    schedule = {"schedule": "exponential", "schedule_settings": {"gamma": 0.5}, "schedule_per": per}
    plan = LocalTrainingConfig(epochs=3, batch_size=99, lr=0.05, momentum=0.5, rounds=2, **schedule)
    data = make_tiny_data(missing=("b", 1))
    settings = {"reference": "none", "label_smoothing": 0.0, "warm_up_epochs": 1, "adversarial_epochs": 2}
    experiment = make_experiment("fedadg", data=data, plan=plan, settings=settings)
    checkpoint, _ = go(experiment, rounds=2)
    plain = make_experiment("fedavg", data=data, plan=plan, settings={"weighting": "uniform"})
    expected, _ = go(plain, "plain", rounds=2)
    found = _network_weights(experiment, checkpoint)
    torch.testing.assert_close(found, expected.weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reference", ["normal", "uniform", "laplace", "none"])
def test_only_a_learnt_reference_shares_a_generator(make_experiment, reference):
    experiment = make_experiment("fedadg", settings={"reference": reference})
    workspace = Workspace(experiment)
    assert all(entry.name.startswith("network.") for entry in workspace.flat.layout.entries)
    state = {}
    update = _train(workspace, workspace.flat.read(), state)
    assert ("discriminator" in state) is (reference != "none")
    assert "generator_loss" not in update.diagnostics


def test_parts_have_the_papers_shapes_and_lose_what_an_ablation_removes(make_experiment):
    network = make_experiment("fedadg").network

    def parts(**settings):
        method = make_method("fedadg", settings)
        module = method.build(copy.deepcopy(network), seed=0)
        critic = make_discriminator(network, method.settings)
        return module.generator.hidden.weight.shape, critic.hidden.weight.shape, critic.projection

    feature, classes = 100, 3
    made, judged, projection = parts()
    assert (made, judged, projection.shape) == (
        (feature, 50 + classes),
        (feature, 25 + classes),
        (feature, 25),
    )
    made, judged, _ = parts(one_hot=False)
    assert (made, judged) == ((feature, 50), (feature, 25))
    _, judged, projection = parts(projection=False)
    assert judged == (feature, feature + classes) and projection is None
    made, judged, _ = parts(noise_size=7, projection_size=99)
    assert (made, judged) == ((feature, 7 + classes), (feature, 99 + classes))


def test_the_projection_keeps_lengths_on_average(make_experiment):
    critic = make_discriminator(make_experiment("fedadg").network, make_method("fedadg").settings)
    features = torch.rand(400, 100, generator=torch.Generator().manual_seed(0)) - 0.5
    ratio = (features @ critic.projection).square().sum(1) / features.square().sum(1)
    assert ratio.mean().item() == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize(
    ("kind", "mean_absolute", "variance"),
    [("normal", (2 / np.pi) ** 0.5, 1), ("uniform", 0.5, 1 / 3), ("laplace", 0.5**0.5, 1)],
)
def test_fixed_references_are_the_distributions_they_are_called(kind, mean_absolute, variance):
    drawn = draw_fixed_reference(
        kind, 500, 400, generator=torch.Generator().manual_seed(1), device=torch.device("cpu")
    )
    assert drawn.mean().item() == pytest.approx(0, abs=0.01)
    assert drawn.abs().mean().item() == pytest.approx(mean_absolute, rel=0.01)
    assert drawn.var().item() == pytest.approx(variance, rel=0.02)
    assert kind != "uniform" or drawn.abs().max() <= 1


def test_a_reading_fills_what_is_not_given_and_is_recorded():
    assert make_method("fedadg").settings.reading == "coherent"
    for name, reading in READINGS.items():
        settings = make_method("fedadg", {"reading": name}).settings
        assert settings.chosen == reading
        assert vars(reading).items() <= vars(settings).items()
    changed = make_method("fedadg", {"reading": "released-vlcs", "detached_generator": "false"}).settings
    assert changed.chosen == replace(READINGS["released-vlcs"], detached_generator=False)
    again = make_method("fedadg", vars(changed)).settings
    assert again == changed, "what a run records makes the same settings"


def test_the_second_layer_of_the_classifier_leaves_the_aligned_features_alone(make_experiment):
    experiment = make_experiment("fedadg", settings={"classifier_layers": 2})
    workspace = Workspace(experiment)
    shared, inputs = workspace.module.eval(), torch.rand(4, 3, 8, 8)
    assert torch.equal(shared.features(inputs), experiment.network.eval().features(inputs))
    torch.testing.assert_close(shared.classify(shared.features(inputs)), shared(inputs))
    update = _train(workspace, workspace.flat.read(), {})
    assert torch.isfinite(update.weights).all()


def test_rates_that_start_over_do_not_combine_with_a_schedule_within_rounds(make_experiment):
    plan = replace(PLAN, schedule="cosine", schedule_per="epoch", rounds=2)
    experiment = make_experiment("fedadg", settings={"rate_warm_up": 5}, plan=plan)
    workspace = Workspace(replace(experiment, plan=plan.in_round(1)))
    with pytest.raises(UsageError, match="--schedule-per round"):
        _train(workspace, workspace.flat.read(), {})


def test_the_epochs_of_a_reading_are_its_schedule():
    released = make_method("fedadg", {"reading": "released-vlcs"})
    assert released.training_schedule(rounds=20, local_epochs=10, batches_per_epoch=None) == [(300, None)]
    assert make_method("fedadg").training_schedule(rounds=2, local_epochs=5, batches_per_epoch=3) == [(10, 3)]


@pytest.mark.parametrize(
    ("local", "settings", "expected"),
    [
        (10, {}, (3, 7)),
        (5, {}, (2, 3)),
        (3, {}, (1, 2)),
        (2, {}, (1, 1)),
        (1, {}, (0, 1)),
        (10, {"warm_up_epochs": 0}, (0, 10)),
        (5, {"adversarial_epochs": 4}, (1, 4)),
        (5, {"warm_up_epochs": 3, "adversarial_epochs": 7}, (3, 7)),
    ],
)
def test_local_epochs_are_shared_out(local, settings, expected):
    assert (
        make_method("fedadg", settings).settings.epochs(
            LocalTrainingConfig(batch_size=64, lr=0.01, momentum=0.5, epochs=local)
        )
        == expected
    )


def test_explicit_epochs_are_spent(make_experiment):
    experiment = make_experiment("fedadg", settings={"warm_up_epochs": 1, "adversarial_epochs": 3})
    workspace = Workspace(experiment)
    update = _train(workspace, workspace.flat.read(), {})
    assert update.seen == 4 * update.samples


def test_one_weight_decides_both_and_smoothing_follows_the_run():
    settings = make_method("fedadg", {"adversarial_weight": "0.85"}).settings
    assert settings.loss_weights == pytest.approx((0.85, 0.15))
    settings = make_method("fedadg", {"adversarial_weight": 2, "classification_weight": 0.5}).settings
    assert settings.loss_weights == (2, 0.5)
    assert settings.smoothing(LocalTrainingConfig(epochs=1, batch_size=64, lr=0.01, momentum=0.5)) == 0.1
    assert (
        settings.smoothing(
            LocalTrainingConfig(epochs=1, batch_size=64, lr=0.01, momentum=0.5, label_smoothing=0.2)
        )
        == 0.2
    )
    assert (
        make_method("fedadg", {"label_smoothing": 0}).settings.smoothing(
            LocalTrainingConfig(epochs=1, batch_size=64, lr=0.01, momentum=0.5)
        )
        == 0
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"adversarial_weight": 1.5}, "adversarial_weight"),
        ({"adversarial_weight": -0.1}, "adversarial_weight"),
        ({"classification_weight": -1}, "classification_weight"),
        ({"warm_up_epochs": -1}, "warm_up_epochs"),
        ({"generator_lr": 0}, "generator_lr"),
        ({"noise_size": 0}, "noise_size"),
        ({"label_smoothing": 1}, "label_smoothing"),
        ({"one_hot_value": 0}, "one_hot_value"),
        ({"rate_warm_up": -1}, "rate_warm_up"),
        ({"classifier_layers": 3}, "classifier_layers"),
        ({"reading": "released"}, "reading"),
        ({"reference": "gamma"}, "reference"),
        ({"one_hott": True}, "one_hot"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        make_method("fedadg", settings)


def test_what_does_not_fit_the_run_is_refused(make_experiment):
    with pytest.raises(UsageError, match="below the 100 numbers of a feature"):
        Workspace(make_experiment("fedadg", settings={"projection_size": 100}))
    with pytest.raises(UsageError, match="do not fit 1 local epochs"):
        workspace = Workspace(make_experiment("fedadg", settings={"warm_up_epochs": 2}))
        _train(workspace, workspace.flat.read(), {})


def test_regression_needs_alignment_without_classes(make_experiment, make_tiny_data, go):
    images = make_tiny_data()
    targets = images.targets.astype(np.float32)
    data = DataSet(
        name="tiny",
        task="regression",
        inputs=images.inputs,
        targets=targets,
        domain_of=images.domain_of,
        domains=images.domains,
    )
    with pytest.raises(UsageError, match="one_hot=false"):
        go(make_experiment("fedadg", data=data), "refused")
    checkpoint, records = go(make_experiment("fedadg", data=data, settings={"one_hot": False}), "whole")
    assert torch.isfinite(checkpoint.weights).all()
    assert "fault" not in [record["event"] for record in records.entries]


def test_a_network_without_room_for_half_a_feature_works():
    """A feature of 1 has no smaller projection: said so, and it works without."""
    network = build_model("mlp", InputSpec((4,), 2), seed=0)
    network.head = torch.nn.Linear(1, 2)
    with pytest.raises(UsageError, match="projection=false"):
        make_method("fedadg").build(network, seed=0)
    module = make_method("fedadg", {"projection": False}).build(network, seed=0)
    assert module.generator.noise_size == 1
