"""A network split into a frozen and a trained part computes what the whole one computes."""

from __future__ import annotations

import pickle

import pytest
import torch

from unseen.errors import UsageError
from unseen.models import InputSpec, Network, build_model
from unseen.models.splitting import HEAD, LAST_STAGE, split_network

MODELS = {
    "mnist-cnn": (1, 28, 28),
    "resnet18": (3, 64, 64),
    "efficientnet-lite0": (3, 64, 64),
    "densenet121": (3, 64, 64),
    "vit-tiny": (3, 64, 64),
    "alexnet": (3, 96, 96),
}


def make(name: str) -> Network:
    return build_model(name, InputSpec(MODELS[name], 7), seed=3)


@pytest.mark.parametrize("part", [HEAD, LAST_STAGE])
@pytest.mark.parametrize("name", MODELS)
def test_both_parts_together_compute_what_the_network_computes(name: str, part: str) -> None:
    network = make(name).eval()
    frozen, trained = split_network(network, part, shape=MODELS[name])
    images = torch.randn(2, *MODELS[name], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = network(images), trained.eval()(frozen(images))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("part", [HEAD, LAST_STAGE])
@pytest.mark.parametrize("name", MODELS)
def test_trained_tensors_keep_their_names_and_values(name: str, part: str) -> None:
    network = make(name)
    whole = network.state_dict()
    _, trained = split_network(network, part, shape=MODELS[name])
    kept = trained.state_dict()
    assert 0 < len(kept) < len(whole)
    for tensor_name, tensor in kept.items():
        assert torch.equal(tensor, whole[tensor_name])


def test_frozen_part_stays_in_evaluation_mode() -> None:
    network = make("resnet18")
    frozen, _ = split_network(network, HEAD, shape=MODELS["resnet18"])
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    frozen.train()
    frozen(torch.randn(4, 3, 64, 64))
    assert not any(module.training for module in frozen.modules())
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())


def test_only_taps_of_the_trained_part_are_left() -> None:
    network = make("resnet18")
    frozen, trained = split_network(network, LAST_STAGE, shape=MODELS["resnet18"])
    assert trained.tap_names == ("layer4",)
    assert len(trained.full(frozen(torch.randn(1, 3, 64, 64))).taps) == 1
    assert split_network(network, HEAD, shape=MODELS["resnet18"])[1].tap_names == ()


def test_trained_part_survives_pickling_for_workers() -> None:
    network = make("vit-tiny").eval()
    frozen, trained = split_network(network, LAST_STAGE, shape=MODELS["vit-tiny"])
    value = frozen(torch.randn(1, 3, 64, 64))
    again = pickle.loads(pickle.dumps(trained.eval()))
    assert torch.equal(again(value), trained(value))


def test_network_without_stages_is_refused_in_one_line() -> None:
    network = build_model("mini-vit", InputSpec((1, 28, 28), 7), seed=0)
    with pytest.raises(UsageError, match="use --train head or --train all"):
        split_network(network, LAST_STAGE, shape=(1, 28, 28))
