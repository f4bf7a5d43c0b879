"""MixStyle, EFDMix and DSU against the papers' loops."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.data.augmentation.feature_styles import dsu, efdmix, mixstyle, style_of
from unseen.data.augmentation.sample_mixing import draw_beta, draw_partners

STYLES = [mixstyle, efdmix, dsu]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def maps(count: int = 6, channels: int = 4, positions: int = 20) -> Tensor:
    scale = 1 + torch.rand(count, channels, 1, generator=seeded(3))
    return scale * torch.randn(count, channels, positions, generator=seeded(4)) + scale


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    draw = seeded(seed)
    torch.rand((), generator=draw)
    return draw_beta(6, 0.1, draw), draw_partners(6, draw)


def literal_style(channel: Tensor) -> tuple[float, float]:
    return float(channel.mean()), float((channel.var() + 1e-6).sqrt())


def test_mixstyle_equals_the_loop_over_images_and_channels() -> None:
    inputs = maps()
    ours = mixstyle(inputs, seeded(1), probability=1.0)
    shares, partners = drawn(1)
    for image, (share, partner) in enumerate(zip(shares.tolist(), partners.tolist(), strict=True)):
        for channel in range(4):
            mean, deviation = literal_style(inputs[image, channel])
            other_mean, other_deviation = literal_style(inputs[partner, channel])
            expected = (share * deviation + (1 - share) * other_deviation) * (
                inputs[image, channel] - mean
            ) / deviation + (share * mean + (1 - share) * other_mean)
            torch.testing.assert_close(ours[image, channel], expected, atol=1e-5, rtol=1e-5)
    assert (ours - inputs).abs().mean() > 0.01


def test_efdmix_equals_matching_the_sorted_values() -> None:
    inputs = maps()
    ours = efdmix(inputs, seeded(1), probability=1.0)
    shares, partners = drawn(1)
    for image, (share, partner) in enumerate(zip(shares.tolist(), partners.tolist(), strict=True)):
        for channel in range(4):
            own, other = inputs[image, channel], sorted(inputs[partner, channel].tolist())
            ranks = own.argsort().argsort()
            matched = torch.tensor([other[rank] for rank in ranks.tolist()])
            torch.testing.assert_close(ours[image, channel], own + (matched - own) * (1 - share))
    assert (ours - inputs).abs().mean() > 0.01


def test_dsu_adds_noise_as_wide_as_the_styles_of_the_batch() -> None:
    inputs = maps()
    ours = dsu(inputs, seeded(1), probability=1.0)
    draw = seeded(1)
    torch.rand((), generator=draw)
    noise = torch.randn(2, 6, 4, 1, generator=draw)
    styles = torch.tensor([[literal_style(channel) for channel in image] for image in inputs])
    wide = (styles.var(dim=0) + 1e-6).sqrt()
    for image in range(6):
        for channel in range(4):
            mean, deviation = styles[image, channel]
            new_mean = mean + noise[0, image, channel, 0] * wide[channel, 0]
            new_deviation = deviation + noise[1, image, channel, 0] * wide[channel, 1]
            expected = new_deviation * (inputs[image, channel] - mean) / deviation + new_mean
            torch.testing.assert_close(ours[image, channel], expected, atol=1e-5, rtol=1e-5)
    assert (ours - inputs).abs().mean() > 0.01


@pytest.mark.parametrize("change", STYLES)
def test_half_of_the_batches_pass_unchanged(change) -> None:
    inputs, draw = maps(), seeded()
    unchanged = sum(change(inputs, draw) is inputs for _ in range(200))
    assert 70 < unchanged < 130


@pytest.mark.parametrize("change", STYLES)
def test_a_batch_of_one_has_no_other_style(change) -> None:
    inputs = maps(1)
    torch.testing.assert_close(change(inputs, seeded(), probability=1.0), inputs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("change", STYLES)
def test_gradients_flow_to_the_maps(change) -> None:
    inputs = maps().requires_grad_()
    change(inputs, seeded(), probability=1.0).square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()
    assert inputs.grad.abs().sum() > 0


@given(st.integers(0, 2**31))
def test_mixed_styles_lie_between_those_of_two_images(seed: int) -> None:
    inputs = maps()
    mean, _ = style_of(inputs)
    mixed, _ = style_of(mixstyle(inputs, seeded(seed), probability=1.0))
    assert (mixed <= mean.max(dim=0).values + 1e-4).all()
    assert (mixed >= mean.min(dim=0).values - 1e-4).all()
