"""FedCLIP: the adapter and both losses against literal versions, and what is sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from unseen.engine.experiment import RoundStart, Workspace
from unseen.errors import UsageError
from unseen.methods import make_method
from unseen.methods.closed_form import class_text_head
from unseen.methods.fedclip import FeatureMask, contrast_pairs
from unseen.training import LocalTrainingConfig

STEP = LocalTrainingConfig(epochs=1, batch_size=18, lr=0.1, momentum=0.0)
"""One step of gradient descent on all training samples of a client."""


def random_numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_adapter_weights_features_by_a_softmax():
    adapter, features = FeatureMask(6), random_numbers(5, 6)
    first, second = adapter.first, adapter.second
    expected = []
    for row in features:
        hidden = torch.tanh(first.weight @ row + first.bias)
        raw = torch.exp(second.weight @ hidden + second.bias)
        changed = raw / raw.sum() * row
        expected.append(changed / changed.square().sum().sqrt() * 6**0.5)
    torch.testing.assert_close(adapter(features), torch.stack(expected))


def literal_step(experiment, loss):
    """The adapter after one step of client a, from a loss on cosines computed with open parts."""
    workspace, network = Workspace(experiment), experiment.network.eval()
    client = experiment.federation[0]
    data = experiment.data
    inputs = torch.from_numpy(data.inputs[client.train]).permute(0, 3, 1, 2)
    targets = torch.from_numpy(data.targets[client.train])
    with torch.no_grad():
        features = network.features(experiment.prepare.normalize(inputs))
    sentences = network.texts.embed_classes("a picture of a {}")
    adapter = workspace.deployed.layer
    values = dict(adapter.named_parameters())
    changed = adapter.mask(features) * features
    gradients = torch.autograd.grad(
        loss(F.normalize(changed, dim=1), sentences, targets, network.texts.scale), list(values.values())
    )
    return {
        f"layer.{name}": (value - STEP.lr * gradient).detach()
        for (name, value), gradient in zip(values.items(), gradients, strict=True)
    }


def classes_loss(images, sentences, targets, scale):
    return F.cross_entropy(scale * images @ sentences.T, targets)


def pairs_loss(images, sentences, targets, scale):
    total = 0.0
    for i in range(len(images)):
        to_texts = torch.stack([scale * images[i] @ sentences[targets[j]] for j in range(len(images))])
        to_images = torch.stack([scale * images[j] @ sentences[targets[i]] for j in range(len(images))])
        total -= to_texts.log_softmax(0)[i] + to_images.log_softmax(0)[i]
    return total / (2 * len(images))


@pytest.mark.parametrize(("name", "loss"), [("classes", classes_loss), ("pairs", pairs_loss)])
def test_one_step_of_a_client_equals_a_literal_one(name, loss, make_experiment):
    experiment = make_experiment("fedclip", settings={"loss": name}, plan=STEP)
    size = len(experiment.federation[0].train)
    experiment = replace(experiment, plan=replace(STEP, batch_size=size))
    workspace = Workspace(experiment)
    update = workspace.train_client(0, {}, RoundStart(1, workspace.flat.read()))
    found = workspace.flat.layout.tensors(update.weights)
    expected = literal_step(experiment, loss)
    assert set(found) == set(expected)
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6)


def test_the_losses_lead_to_different_adapters(make_experiment, go):
    one, other = (
        go(make_experiment("fedclip", settings={"loss": loss}), loss)[0].weights
        for loss in ("classes", "pairs")
    )
    assert not torch.allclose(one, other, atol=1e-5)


@given(labels=st.lists(st.integers(0, 2), min_size=2, max_size=8))
def test_towards_sentences_duplicates_only_weigh_classes_by_their_number(labels):
    targets = torch.tensor(labels)
    images, sentences = random_numbers(len(labels), 4), random_numbers(3, 4, seed=1)
    logits = images @ sentences.T
    counts = targets.bincount(minlength=3)
    towards = F.cross_entropy(images @ sentences[targets].T, torch.arange(len(labels)))
    weighted = F.cross_entropy(logits + counts.log(), targets)
    torch.testing.assert_close(towards, weighted + counts[targets].log().mean())


def test_in_the_other_direction_images_of_a_class_are_each_others_negatives():
    sentence = F.normalize(random_numbers(1, 4), dim=1)
    alike = (20 * sentence).repeat(6, 1)
    assert float(contrast_pairs(alike, sentence.repeat(6, 1))) == pytest.approx(
        torch.tensor(6.0).log().item()
    )


def test_only_the_adapter_is_sent_and_the_rest_stays(make_experiment, go):
    experiment = make_experiment("fedclip")
    workspace = Workspace(experiment)
    names = {entry.name for entry in workspace.flat.layout.entries}
    assert names == {f"layer.{part}.{kind}" for part in ("first", "second") for kind in ("weight", "bias")}
    assert workspace.flat.layout.size == 2 * (32 * 32 + 32)
    checkpoint, _ = go(experiment)
    tensors = workspace.whole_tensors(checkpoint.weights)
    expected = class_text_head(experiment.network, "a picture of a {}").weight
    torch.testing.assert_close(tensors["head.weight"], expected)
    torch.testing.assert_close(tensors["body.body.proj"], experiment.network.body.proj.data)


def test_training_lowers_the_loss(make_experiment, go, rounds_of):
    plan = LocalTrainingConfig(epochs=5, batch_size=4, lr=0.01, momentum=0.0, optimizer="adam")
    _, records = go(make_experiment("fedclip", plan=plan), rounds=3)
    first, *_, last = [record["loss"] for record in rounds_of(records)]
    assert last < first


def test_what_the_loss_reads_decides_what_it_combines_with():
    classes, pairs = make_method("fedclip"), make_method("fedclip", {"loss": "pairs"})
    assert classes.accepts_mixed_targets and not pairs.accepts_mixed_targets
    assert not classes.traits.beyond_losses and "samples of a batch" in pairs.traits.beyond_losses
    assert classes.weighting == "uniform"
    with pytest.raises(UsageError, match="setting 'template' of fedclip"):
        make_method("fedclip", {"template": "a picture"})
