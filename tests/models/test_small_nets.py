"""Every small network keeps the one interface, at every size and number of channels it promises."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unseen.errors import UsageError
from unseen.models import MODELS, InputSpec, Network, build_model, list_models

IMAGE_MODELS = ["mnist-cnn", "lenet", "lenet-dropout", "lenet-1", "cnn-2", "customnet", "mini-vit"]
SMALL_MODELS = [*IMAGE_MODELS, "mlp"]
SHAPES = [(1, 16, 16), (3, 16, 16), (1, 28, 28), (3, 32, 32), (3, 20, 24), (3, 64, 64), (1, 30, 19)]


def make(name: str, shape: tuple[int, ...], outputs: int = 5, seed: int = 0) -> Network:
    return build_model(name, InputSpec(shape, outputs), seed=seed)


@pytest.mark.parametrize("name", SMALL_MODELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_taps_and_head(name: str, shape: tuple[int, int, int]) -> None:
    network = make(name, shape).eval()
    inputs = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
    logits, features, taps = network.full(inputs)
    assert features.shape == (3, network.feature_size)
    assert logits.shape == (3, 5)
    assert len(taps) == len(network.tap_names)
    assert all(tap.ndim == 4 and len(tap) == 3 for tap in taps)
    assert type(network.head) is nn.Linear
    torch.testing.assert_close(features @ network.head.weight.T + network.head.bias, logits)
    torch.testing.assert_close(network(inputs), logits)
    torch.testing.assert_close(network.features(inputs), features)
    assert len(network.pixel_mean) in {1, shape[0]}
    assert len(network.pixel_std) == len(network.pixel_mean)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_the_prediction_depends_on_the_picture_and_on_every_parameter(name: str) -> None:
    network = make(name, (3, 28, 28)).eval()
    inputs = torch.rand(4, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    logits = network(inputs)
    assert not torch.allclose(logits[0], logits[1], atol=1e-5)
    logits.square().sum().backward()
    for parameter_name, parameter in network.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), parameter_name


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_a_loss_on_any_tap_trains_the_first_layer(name: str) -> None:
    network = make(name, (1, 28, 28)).eval()
    first = next(parameter for parameter in network.parameters() if parameter.ndim == 4)
    for tap in network.full(torch.rand(2, 1, 28, 28)).taps:
        (gradient,) = torch.autograd.grad(tap.square().sum(), first, retain_graph=True)
        assert bool(gradient.any())


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_seeded_weights_without_touching_the_global_generator(name: str) -> None:
    before = torch.random.get_rng_state()
    first, second, other = (make(name, (1, 28, 28), seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_mnist_cnn_has_the_size_benchmarks_assume() -> None:
    assert sum(parameter.numel() for parameter in make("mnist-cnn", (1, 28, 28), 10).parameters()) == 155_606


def test_padding_keeps_small_images_alive() -> None:
    assert make("mnist-cnn", (1, 16, 16)).full(torch.rand(1, 1, 16, 16)).taps[1].shape == (1, 64, 4, 4)
    assert make("mnist-cnn", (1, 20, 20)).full(torch.rand(1, 1, 20, 20)).taps[1].shape == (1, 64, 2, 2)


def test_relu_behind_the_pool_is_the_same_function() -> None:
    network = make("mnist-cnn", (1, 28, 28)).eval()
    inputs = torch.rand(2, 1, 28, 28)
    convolution = network.get_submodule("stages.conv1.0")
    literal = nn.functional.max_pool2d(nn.functional.relu(convolution(inputs)), 2)
    assert torch.equal(network.full(inputs).taps[0], literal)


def test_mini_vit_taps_lie_where_their_patches_lie() -> None:
    network = make("mini-vit", (1, 16, 24)).eval()
    taps = network.full(torch.rand(1, 1, 16, 24)).taps
    assert [tap.shape for tap in taps] == [(1, 64, 8, 12)] * 3
    block = network.get_submodule("blocks.3")
    seen: list[torch.Tensor] = []
    block.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    last = network.full(torch.rand(1, 1, 16, 24)).taps[-1]
    assert torch.equal(last[0, :, 2, 5], seen[0][0, 2 * 12 + 5])


def test_mlp_takes_tables_and_predicts_one_value() -> None:
    network = make("mlp", (7,), outputs=1)
    assert network(torch.rand(4, 7)).shape == (4, 1)
    assert network.full(torch.rand(4, 7)).taps == ()


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "alexnet"])
def test_a_table_is_refused_by_image_models(name: str) -> None:
    with pytest.raises(UsageError, match=r"rows of 7 columns.*--model mlp"):
        make(name, (7,))


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "alexnet"])
def test_images_that_vanish_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"needs images of at least .* these are 3x3"):
        make(name, (1, 3, 3))


def test_replaced_head_is_seeded_and_fits() -> None:
    before = torch.random.get_rng_state()
    network, same = make("lenet", (1, 28, 28)), make("lenet", (1, 28, 28))
    network.replace_head(9, seed=1)
    same.replace_head(9, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(network.head.weight, same.head.weight)
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 9)


def test_the_list_is_complete_and_counts_right() -> None:
    summaries = {summary.name: summary for summary in list_models()}
    assert set(summaries) == set(MODELS)
    for name in SMALL_MODELS:
        parameters = make(name, summaries[name].reference, 10).parameters()
        assert sum(parameter.numel() for parameter in parameters) == summaries[name].parameters, name
