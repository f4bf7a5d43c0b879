"""Gradient inversion on real rounds: it works where nothing protects, and fails where something does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unseen.audit.attack import AttackResult, attack
from unseen.audit.gradient_inversion import (
    AttackEffort,
    class_signals,
    count_correct_labels,
    infer_labels,
    invert,
)
from unseen.audit.gradient_view import gradient_views, read_message, read_state
from unseen.audit.reconstruction_score import average_image, guesses, pixels
from unseen.audit.replay import ReplayedRound, choose_images, replay_round, single_step
from unseen.engine import Experiment
from unseen.privacy import crypto, make_protection
from unseen.seeding import torch_generator

EFFORT = AttackEffort(iterations=200, restarts=1)
CLIENT = "a"


class Round:
    """A round of single images under a protection, and the attacks on it."""

    def __init__(
        self, experiment: Experiment, protection: str, *, images: int = 1, **settings: object
    ) -> None:
        self.whole = replace(experiment, protection=make_protection(protection, settings))
        self.images = choose_images(experiment, count=images, fraction=1.0)
        self.experiment = single_step(self.whole, self.images)
        self.observed: ReplayedRound = replay_round(self.experiment, rounds=1)

    def attacked(self, kind: str, effort: AttackEffort = EFFORT) -> AttackResult:
        count = len(self.images[CLIENT])
        lr, bits = self.experiment.plan.lr, 24
        seen = gradient_views(self.observed, [CLIENT], images=count, lr=lr, bits=bits)
        federation = self.whole.federation
        return attack(
            self.experiment,
            self.observed,
            next(view for view in seen if view.kind == kind),
            self.images,
            holdings={name: federation[federation.position(name)].train for name in self.images},
            average=average_image(self.whole),
            effort=effort,
            tick=lambda: None,
        )


def test_the_servers_view_is_the_gradient(make_experiment):
    seen = Round(make_experiment(), "none")
    prepare, network = seen.experiment.prepare, seen.observed.network
    client = seen.experiment.federation[0]
    rows = seen.images[client.name]
    inputs = prepare.normalize.finish(pixels(seen.experiment.data, rows))
    targets = torch.from_numpy(seen.experiment.data.targets[rows])
    expected = torch.autograd.grad(F.cross_entropy(network(inputs), targets), list(network.parameters()))
    reading = read_message(
        seen.observed.messages[client.name], seen.observed.start, lr=seen.experiment.plan.lr
    )
    assert reading.readable
    for mine, theirs in zip(seen.observed.gradient(reading.gradient), expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_an_unprotected_update_gives_its_image_away_and_a_masked_one_does_not(make_experiment):
    experiment = make_experiment()
    plain, masked = (Round(experiment, name).attacked("message") for name in ("none", "secure-sum"))
    (found,), (hidden,) = plain.reconstructions, masked.reconstructions
    random = guesses(found.original[None], average_image(experiment), seed=0)["random"]
    assert found.psnr > random.psnr + 10
    assert found.recognised
    assert plain.labels == 1
    assert plain.view.readable
    assert not masked.view.readable
    assert hidden.psnr < random.psnr + 5
    assert not hidden.recognised


def test_the_sum_of_few_images_does_not_hide_them(make_experiment):
    """Masks hide single messages; a sum of three images is a batch of three."""
    merged = Round(make_experiment(), "secure-sum").attacked(
        "merged", AttackEffort(iterations=300, restarts=1)
    )
    assert len(merged.reconstructions) == 3
    assert merged.recognised >= 1


def test_without_masks_the_same_reading_would_be_the_gradient(make_experiment, monkeypatch):
    """So the attack on masked numbers fails because of the masks, not because it misreads them."""
    import numpy as np

    monkeypatch.setattr(crypto, "mask", lambda seed, count: np.zeros(count, dtype=np.uint64))
    experiment = make_experiment()
    bare, plain = Round(experiment, "secure-sum"), Round(experiment, "none")
    lr = experiment.plan.lr
    read, true = (
        read_message(each.observed.messages[CLIENT], each.observed.start, lr=lr) for each in (bare, plain)
    )
    assert not read.readable
    assert torch.allclose(read.gradient, true.gradient, atol=2**-22 / lr)


def test_encryption_leaves_nothing_to_read(make_experiment):
    pytest.importorskip("tenseal")
    seen = Round(make_experiment(), "encrypted")
    found = seen.attacked("message", AttackEffort(iterations=60, restarts=1))
    assert not found.view.readable
    assert not found.recognised
    plain = Round(make_experiment(), "none")
    lr, start = seen.experiment.plan.lr, seen.observed.start
    gradients = [read_message(each.observed.messages[CLIENT], start, lr=lr) for each in (seen, plain)]
    assert abs(F.cosine_similarity(*(reading.gradient for reading in gradients), dim=0)) < 0.05


@pytest.mark.parametrize(("protection", "kind"), [("dp-samples", "message"), ("dp-clients", "merged")])
def test_noise_hides_the_image(make_experiment, protection, kind):
    pytest.importorskip("opacus")
    seen = Round(make_experiment(), protection, noise=1.0, noise_seed="run")
    found = seen.attacked(kind, AttackEffort(iterations=100, restarts=1))
    assert found.view.readable
    assert not found.recognised


def test_clipping_alone_hides_nothing_from_the_server(make_experiment):
    """With dp-clients the noise is added behind the server: the audit must say so."""
    pytest.importorskip("opacus")
    found = Round(make_experiment(), "dp-clients", clip=0.01, noise_seed="run").attacked("message")
    assert found.recognised


def test_two_images_are_rebuilt_with_their_labels(make_experiment):
    found = Round(make_experiment(), "none", images=2).attacked(
        "message", AttackEffort(iterations=300, restarts=1)
    )
    assert len(found.reconstructions) == 2
    assert found.recognised >= 1


def test_time_is_bounded_and_every_iteration_ticks(make_experiment):
    seen = Round(make_experiment(), "none")
    flat = read_state(seen.observed.messages[CLIENT].weights, seen.observed.start, lr=0.05)
    ticks = []

    def ticking(seconds: float) -> int:
        ticks.clear()
        invert(
            seen.observed.network,
            seen.observed.gradient(flat),
            count=1,
            shape=(3, 8, 8),
            normalize=seen.experiment.prepare.normalize,
            effort=AttackEffort(iterations=5, restarts=2, seconds=seconds),
            generator=torch_generator(0, "test"),
            tick=lambda: ticks.append(1),
        )
        return len(ticks)

    assert ticking(1000.0) == 10
    assert ticking(0.0) == 2


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "fedsr", "csac", "fedbn", "cwt", "ppdg"])
def test_every_kind_of_method_can_be_observed(make_experiment, method):
    seen = Round(make_experiment(method), "none")
    trained = [part for part in seen.observed.network.parameters() if part.requires_grad]
    gradient = seen.observed.gradient(torch.arange(float(len(seen.observed.start))))
    assert [part.shape for part in gradient] == [part.shape for part in trained]
    assert (seen.observed.merged is None) == (method == "cwt")
    first = next(iter(seen.observed.messages.values()))
    assert not torch.equal(first.weights, seen.observed.start)


def gradients(head: nn.Linear, features: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(head(features), labels), list(head.parameters())))


@pytest.fixture
def head() -> nn.Linear:
    layer = nn.Linear(16, 6)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("label", range(6))
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_label_of_a_single_image_is_exact(head, label, with_bias):
    features = torch.rand(1, 16, generator=torch.Generator().manual_seed(label))
    weight, bias = gradients(head, features, torch.tensor([label]))
    signals = class_signals(head, weight, bias if with_bias else None, features)
    assert infer_labels(signals, count=1, probabilities=torch.zeros(1, 6)).tolist() == [label]


def test_the_labels_of_a_batch_are_counted(head):
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 0, 0, 2, 5, 5, 4, 4])
    features, arbitrary = (torch.rand(8, 16, generator=generator) for _ in range(2))
    _, bias = gradients(head, features, labels)
    found = infer_labels(bias, count=8, probabilities=head(arbitrary).softmax(dim=1).detach())
    assert found.tolist() == sorted(labels.tolist())


def test_labels_found_counts_repetitions():
    assert count_correct_labels(torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2])) == 2
    assert count_correct_labels(torch.tensor([0]), torch.tensor([3])) == 0
