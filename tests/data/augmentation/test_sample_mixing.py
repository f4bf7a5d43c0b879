"""Mixup, CutMix and amplitude mix against their definitions, image by image."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.data.augmentation.sample_mixing import (
    cutmix,
    draw_beta,
    draw_partners,
    mix_amplitudes_locally,
    mixup,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 16) -> Tensor:
    return torch.rand(count, 3, 12, 15, generator=seeded(9))


def test_shares_follow_the_beta_distribution() -> None:
    shares = draw_beta(20_000, 0.1, seeded())
    assert 0.48 < shares.mean() < 0.52
    assert abs(float(shares.var()) - 0.25 / 1.2) < 0.01, "the variance of Beta(a, a) is 1 / (4 (2a + 1))"
    assert torch.equal(shares, draw_beta(20_000, 0.1, seeded()))
    assert not torch.equal(shares, draw_beta(20_000, 0.1, seeded(1)))


def test_mixup_blends_each_image_with_its_partner() -> None:
    images, draw = pictures(), seeded(1)
    mixed = mixup(images, seeded(1), alpha=0.5)
    share, partner = draw_beta(16, 0.5, draw), draw_partners(16, draw)
    assert torch.equal(mixed.partner, partner)
    assert torch.equal(mixed.share, share)
    for number, (own, other) in enumerate(zip(share.tolist(), partner.tolist(), strict=True)):
        expected = own * images[number] + (1 - own) * images[other]
        torch.testing.assert_close(mixed.images[number], expected)


@given(st.integers(0, 2**31))
def test_cutmix_pastes_one_rectangle_and_counts_its_pixels(seed: int) -> None:
    images = pictures()
    mixed = cutmix(images, seeded(seed))
    for number, other in enumerate(mixed.partner.tolist()):
        if other == number:
            continue
        pasted = (mixed.images[number] == images[other]).all(0)
        kept = (mixed.images[number] == images[number]).all(0)
        assert (pasted ^ kept).all()
        rows, columns = pasted.any(1), pasted.any(0)
        assert torch.equal(pasted, rows[:, None] & columns[None])
        for line in (rows, columns):
            places = line.nonzero().flatten()
            assert len(places) == 0 or int(places[-1] - places[0]) == len(places) - 1
        torch.testing.assert_close(float(mixed.share[number]), 1 - float(pasted.float().mean()))


def test_cutmix_pastes_something() -> None:
    shares = cutmix(pictures(200), seeded()).share
    assert 0.3 < shares.mean() < 0.9
    assert (shares < 1).float().mean() > 0.7


def test_amplitude_mix_keeps_the_phase() -> None:
    images = 0.4 + 0.2 * pictures()
    changed = mix_amplitudes_locally(images, seeded(1), most=0.8).numpy()
    draw = seeded(1)
    shares, partners = 0.8 * torch.rand(16, generator=draw), draw_partners(16, draw)
    for number, (share, other) in enumerate(zip(shares.tolist(), partners.tolist(), strict=True)):
        own, theirs = (np.fft.fft2(images[place].numpy().astype(float)) for place in (number, other))
        amplitude = (1 - share) * np.abs(own) + share * np.abs(theirs)
        expected = np.fft.ifft2(amplitude * np.exp(1j * np.angle(own))).real.clip(0, 1)
        np.testing.assert_allclose(changed[number], expected, atol=1e-5)
    assert np.abs(changed - images.numpy()).mean() > 0.01
