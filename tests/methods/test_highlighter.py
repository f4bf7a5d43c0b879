"""StableFDG's highlighter: partners of a class, attention, and the networks that it fits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import UsageError
from unseen.methods.stablefdg.highlighter import Highlighter, next_of_class, with_highlighter
from unseen.methods.stablefdg.style_stages import find_style_stages
from unseen.models import InputSpec, build_model
from unseen.models.splitting import split_network
from unseen.seeding import global_torch_seed

SHAPE = (3, 64, 64)


def images(count: int) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_partners_are_a_ring_within_each_class(labels):
    partners = next_of_class(torch.tensor(labels)).tolist()
    for row, label in enumerate(labels):
        same = [place for place, each in enumerate(labels) if each == label]
        assert partners[row] == same[(same.index(row) + 1) % len(same)]


def test_attention_is_a_bounded_weighting_that_depends_on_the_partner():
    with global_torch_seed(0, "test highlighter"):
        layer, maps = Highlighter(6, 4), torch.randn(3, 6, 5, 4)
    own = layer.attention(maps)
    torch.testing.assert_close(own.sum(1), torch.ones(3))
    assert own.max() / own.min() < torch.tensor(2.0).exp(), "scores are means of cosines"
    torch.testing.assert_close(layer.attention(maps, torch.arange(3)), own)
    assert (layer.attention(maps, torch.tensor([1, 2, 0])) - own).abs().max() > 1e-3
    pooled = layer(torch.ones(3, 2), maps, own)
    torch.testing.assert_close(pooled[:, 2:], (maps.flatten(2) * own[:, None]).sum(2))


@pytest.mark.parametrize(
    ("model", "channels", "stages"),
    [
        ("resnet18", 512, ["layer1", "layer2", "layer3"]),
        ("efficientnet-lite0", 320, ["blocks.1", "blocks.2", "blocks.4"]),
        ("densenet121", 1024, ["denseblock1", "denseblock2", "denseblock3"]),
        ("alexnet", 256, ["features.2", "features.5", "features.6"]),
        ("mini-vit", 64, ["blocks.0", "blocks.1", "blocks.2"]),
        ("mnist-cnn", 64, ["conv1", "conv2"]),
    ],
)
def test_known_networks_have_stages_and_a_last_map(model, channels, stages):
    network = build_model(model, InputSpec(SHAPE, 4), seed=0)
    found = find_style_stages(network)
    names = [name for name, module in network.named_modules() if any(module is stage for stage in found)]
    assert all(name.endswith(stage) for name, stage in zip(names, stages, strict=True))
    changed = with_highlighter(network, size=30, seed=0).eval()
    assert changed.feature_size == network.feature_size + channels
    with torch.no_grad():
        features = changed.features(images(2))
        torch.testing.assert_close(features[:, : network.feature_size], network.eval().features(images(2)))


def test_a_resnet_has_the_papers_features():
    network = build_model("resnet18", InputSpec(SHAPE, 4), seed=0)
    changed = with_highlighter(network, size=30, seed=0).eval()
    with torch.no_grad():
        features, (*_, last) = changed.features_and_taps(images(2), taps=True)
    torch.testing.assert_close(features[:, :512], last.mean((2, 3)), rtol=1e-4, atol=1e-5)
    weights = changed.layer.attention(last)
    torch.testing.assert_close(features[:, 512:], torch.einsum("ncp,np->nc", last.flatten(2), weights))


def test_the_last_stage_alone_takes_styles_where_the_frozen_part_ends():
    network = build_model("resnet18", InputSpec(SHAPE, 4), seed=0)
    frozen, trained = split_network(network, "last-stage", shape=SHAPE)
    whole, part = (with_highlighter(each, size=30, seed=0).eval() for each in (network, trained))
    part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
    with torch.no_grad():
        torch.testing.assert_close(part(frozen(images(2))), whole(images(2)), rtol=1e-4, atol=1e-5)
        (stage,), seen = find_style_stages(part), []
        stage.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
        part(frozen(images(2)))
    assert [each.shape[1] for each in seen] == [256], "once, what the third stage returned"


def test_networks_without_a_last_map_are_refused():
    network = build_model("mnist-cnn", InputSpec(SHAPE, 4), seed=0)
    _, head = split_network(network, "head", shape=SHAPE)
    for each in (head, build_model("mlp", InputSpec((5,), 4), seed=0)):
        with pytest.raises(UsageError, match=r"has no maps: use --train all, .*highlighter=false"):
            with_highlighter(each, size=30, seed=0)
    assert find_style_stages(head) == []


def test_transformers_whose_maps_do_not_follow_added_images_are_refused():
    network = build_model("vit-tiny", InputSpec(SHAPE, 4), seed=0)
    changed = with_highlighter(network, size=30, seed=0)
    stage = find_style_stages(changed)[0]
    handle = stage.register_forward_hook(lambda _module, _inputs, output: torch.cat([output, output]))
    with pytest.raises(UsageError, match="oversampling=0"):
        changed.features_in_pairs(images(2), lambda: torch.arange(4))
    handle.remove()
    features, _ = changed.features_in_pairs(images(2), lambda: torch.arange(2))
    assert features.shape == (2, 384)
