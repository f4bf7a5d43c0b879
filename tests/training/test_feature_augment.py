"""Augmentations inside the network: where hooks act, and where they must not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data.augmentation import parse_augmentations
from unseen.data.augmentation.feature_styles import mixstyle
from unseen.data.augmentation.head_penalties import challenge_features
from unseen.errors import UsageError
from unseen.models import InputSpec, Network, build_model
from unseen.models.splitting import split_network
from unseen.training.feature_augment import (
    FeatureAugmenter,
    check_feature_augmentation,
    find_early_stages,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def network() -> Network:
    return build_model("mnist-cnn", InputSpec((3, 12, 12), 4), seed=0).train()


@pytest.fixture
def inputs() -> Tensor:
    return torch.rand(6, 3, 12, 12, generator=seeded(2))


def augmenter(text: str, network: Network) -> FeatureAugmenter:
    return FeatureAugmenter(parse_augmentations(text), network, seeded(5))


def test_mixstyle_acts_after_the_first_two_stages(network: Network, inputs: Tensor) -> None:
    with augmenter("mixstyle:1", network).attached():
        ours = network(inputs)
    draw, value = seeded(5), inputs
    for number, stage in enumerate(network.stages.values()):
        value = stage(value)
        if number < 2:
            value = mixstyle(value.flatten(2), draw, probability=1.0).view(value.shape)
    torch.testing.assert_close(ours, network.head(value.flatten(1)))
    assert not torch.equal(ours, network(inputs)), "the hooks are gone"


@pytest.mark.parametrize("text", ["mixstyle:1", "efdmix:1", "dsu:1", "rsc"])
def test_evaluation_and_copies_are_untouched(text: str, network: Network, inputs: Tensor) -> None:
    plain = network.eval()(inputs)
    network.train()
    with augmenter(text, network).attached() as inside:
        copied = copy.deepcopy(network)
        copied(inputs)
        assert (inside.stages, inside.head, inside._last) == (0, 0, None), "a copy is not augmented"
        assert torch.equal(copied.eval()(inputs), plain)
        assert torch.equal(network.eval()(inputs), plain)
        assert inside.stages == 0
        changed = network.train()(inputs)
    assert text == "rsc" or not torch.equal(changed, plain)


def test_rsc_replaces_the_outputs_that_the_head_returned(network: Network, inputs: Tensor) -> None:
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    with augmenter("rsc", network).attached() as inside:
        features = network.features(inputs)
        outputs = network.head(features)
        changed = inside.change_outputs(outputs, targets)
        assert inside.change_outputs(outputs + 0, targets).shape == outputs.shape
        assert inside.head == 1, "other tensors than the head's latest outputs stay"
    expected = network.head(challenge_features(features, targets, network.head))
    torch.testing.assert_close(changed, expected)
    assert not torch.equal(changed, outputs)


def test_rsc_uses_the_parameters_that_the_pass_had(network: Network, inputs: Tensor) -> None:
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    other = {name: 2 * value.detach() for name, value in network.named_parameters()}
    with augmenter("rsc", network).attached() as inside:
        outputs = torch.func.functional_call(network, other, (inputs,))
        changed = inside.change_outputs(outputs, targets)
        weight, bias = other["head.weight"], other["head.bias"]
    body = copy.deepcopy(network)
    body.load_state_dict(other)
    expected = challenge_features(body.features(inputs), targets, lambda value: F.linear(value, weight, bias))
    torch.testing.assert_close(changed, F.linear(expected, weight, bias))


def test_a_method_that_trains_around_the_hooks_is_refused(network: Network) -> None:
    with pytest.raises(UsageError, match=r"--augment mixstyle\+rsc has no effect"):
        augmenter("mixstyle+rsc", network).require_effect()
    augmenter("sd", network).require_effect()


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("resnet18", ("layer1", "layer2")),
        ("efficientnet-lite0", ("blocks.1", "blocks.2")),
        ("mini-vit", ("0", "1")),
        ("vit-tiny", ("blocks.0", "blocks.1")),
        ("alexnet", ("features.2", "features.5")),
    ],
)
def test_the_early_stages_of_known_networks(model: str, names: tuple[str, str]) -> None:
    network = build_model(model, InputSpec((3, 64, 64), 4), seed=0)
    stages = find_early_stages(network)
    found = [name for name, module in network.named_modules() if any(module is stage for stage in stages)]
    for place, name in zip(found, names, strict=True):
        assert name in place
    check_feature_augmentation("mixstyle", network, (3, 64, 64), classes=4)
    images = torch.rand(4, 3, 64, 64, generator=seeded())
    network.train()
    with augmenter("mixstyle:1+efdmix:1+dsu:1", network).attached() as inside:
        assert network(images).isfinite().all()
    assert inside.stages == 2


def test_networks_and_tasks_without_what_is_needed_are_refused() -> None:
    table = build_model("mlp", InputSpec((5,), 4), seed=0)
    with pytest.raises(UsageError, match="changes feature maps"):
        check_feature_augmentation("mixstyle", table, (5,), classes=4)
    with pytest.raises(UsageError, match="needs classes"):
        check_feature_augmentation("sd+rsc", table, (5,), classes=0)
    check_feature_augmentation("rsc+sd", table, (5,), classes=4)


@pytest.mark.parametrize("part", ["last-stage", "head"])
def test_a_network_without_its_first_stages_is_refused(part: str) -> None:
    whole = build_model("resnet18", InputSpec((3, 32, 32), 4), seed=0)
    frozen, trained = split_network(whole, part, shape=(3, 32, 32))
    shape = tuple(frozen(torch.zeros(1, 3, 32, 32)).shape[1:])
    with pytest.raises(UsageError, match="has 0: use --train all"):
        check_feature_augmentation("mixstyle", trained, shape, classes=4)
    check_feature_augmentation("rsc+sd", trained, shape, classes=4)
