"""Maps in blocks give the same numbers as ordinary ones, and appear only where they are asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from unseen.models import FlatState, InputSpec, Network, blocked_maps, build_model
from unseen.models.mkldnn import BlockedStage, dense, in_blocks

BLOCKED_MODELS = ["mnist-cnn", "lenet"]

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch was built without oneDNN"
)


def make(name: str, shape: tuple[int, int, int]) -> Network:
    return build_model(name, InputSpec(shape, 5), seed=0)


def gradients(network: Network, inputs: Tensor) -> list[Tensor]:
    logits, _, taps = network.full(inputs)
    whole = logits.square().sum() + sum(tap.square().sum() for tap in taps)
    return list(torch.autograd.grad(whole, list(network.parameters())))


@needs_onednn
@pytest.mark.parametrize("name", BLOCKED_MODELS)
@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32), (1, 30, 19)])
def test_outputs_taps_and_gradients_are_those_of_ordinary_maps(name, shape):
    network = make(name, shape)
    inputs = torch.rand(7, *shape, generator=torch.Generator().manual_seed(1))
    with blocked_maps():
        blocked, blocked_gradients = network.full(inputs), gradients(network, inputs)
    ordinary = network.full(inputs)
    for one, other in zip(
        (blocked.logits, blocked.features, *blocked.taps),
        (ordinary.logits, ordinary.features, *ordinary.taps),
        strict=True,
    ):
        assert not one.is_mkldnn
        torch.testing.assert_close(one, other)
    for one, other in zip(blocked_gradients, gradients(network, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("name", BLOCKED_MODELS)
def test_blocks_go_from_the_first_convolution_to_the_last_and_no_further(name):
    network, seen = make(name, (1, 28, 28)), []
    for stage in network.stages.values():
        stage.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].is_mkldnn))
    with blocked_maps():
        network(torch.rand(2, 1, 28, 28))
    assert seen == [False, True, False, False][: len(seen)]


@needs_onednn
@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_part_may_forbid_them_again():
    maps = torch.rand(2, 1, 8, 8)
    with blocked_maps():
        assert in_blocks(maps).is_mkldnn
        with blocked_maps(False):
            assert in_blocks(maps) is maps
        assert in_blocks(maps).is_mkldnn
        torch.testing.assert_close(dense(in_blocks(maps)), maps)
        with torch.inference_mode():
            torch.testing.assert_close(dense(in_blocks(maps)), maps)
        assert in_blocks(maps.double()).dtype is torch.float64
        with torch.backends.mkldnn.flags(enabled=False):
            assert in_blocks(maps) is maps
    assert in_blocks(maps) is maps


def test_weights_of_blocked_stages_lie_in_their_own_order_and_others_with_channels_last():
    network = nn.Sequential(BlockedStage(nn.Conv2d(2, 3, 3)), nn.Conv2d(3, 4, 3))
    own, last = network[0][0].weight.detach().clone(), network[1].weight.detach().clone()
    flat = FlatState(network)
    vectors = {entry.name: flat.vector[entry.slice] for entry in flat.layout.entries}
    torch.testing.assert_close(vectors["0.0.weight"], own.flatten())
    torch.testing.assert_close(vectors["1.weight"], last.permute(0, 2, 3, 1).flatten())
    torch.testing.assert_close(flat.layout.tensors(flat.vector)["0.0.weight"], own)
    plain = FlatState(nn.Sequential(nn.Sequential(nn.Conv2d(2, 3, 3)), nn.Conv2d(3, 4, 3)))
    assert plain.layout.digest != flat.layout.digest
