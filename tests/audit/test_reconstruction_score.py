"""PSNR, SSIM and the picking out of originals, by properties that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.audit.reconstruction_score import LARGEST_PSNR, match_images, psnr, rank, ssim


def images(count: int = 4, *, channels: int = 1, side: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.rand((count, channels, side, side), generator=torch.Generator().manual_seed(seed))


def test_psnr_of_a_known_error():
    one = torch.full((2, 3, 5, 5), 0.5)
    assert psnr(one, one + 0.1).tolist() == pytest.approx([20.0, 20.0], abs=1e-3)
    assert psnr(one, one).tolist() == [LARGEST_PSNR] * 2


@pytest.mark.parametrize("side", [3, 6, 7, 28])
@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_is_one_for_equals_symmetric_and_small_for_strangers(side, channels):
    one, other = images(channels=channels, side=side), images(channels=channels, side=side, seed=1)
    assert torch.allclose(ssim(one, one), torch.ones(4))
    assert torch.allclose(ssim(one, other), ssim(other, one))
    assert ssim(one, other).abs().max() < 0.9


def test_ssim_falls_with_noise_and_is_negative_for_a_negative_picture():
    one, noise = images(side=20), images(side=20, seed=1) - 0.5
    little, much = ssim(one, one + 0.1 * noise).mean(), ssim(one, one + noise).mean()
    assert 1 > little > much
    assert ssim(one, 1 - one).max() < 0


def test_ssim_of_two_flat_images_is_the_term_of_light():
    dark, light = torch.full((1, 1, 9, 9), 0.2), torch.full((1, 1, 9, 9), 0.6)
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)
    assert float(ssim(dark, light)) == pytest.approx(expected, rel=1e-4)


def test_ssim_equals_the_definition_written_out():
    one, other = (images(1, side=9, seed=seed)[0, 0].double().numpy() for seed in (0, 1))
    values = []
    for top in range(3):
        for left in range(3):
            a, b = (each[top : top + 7, left : left + 7].ravel() for each in (one, other))
            covariance = np.cov(a, b)
            light = (2 * a.mean() * b.mean() + 1e-4) / (a.mean() ** 2 + b.mean() ** 2 + 1e-4)
            spread = covariance[0, 0] + covariance[1, 1] + 9e-4
            values.append(light * (2 * covariance[0, 1] + 9e-4) / spread)
    found = ssim(*(torch.from_numpy(each)[None, None] for each in (one, other)))
    assert float(found) == pytest.approx(np.mean(values), rel=1e-9)


def test_ssim_agrees_with_scikit_image():
    metrics = pytest.importorskip("skimage.metrics")
    one, other = (images(1, side=16, seed=seed)[0, 0].double() for seed in (0, 1))
    theirs = metrics.structural_similarity(one.numpy(), other.numpy(), data_range=1.0)
    assert float(ssim(one[None, None], other[None, None])) == pytest.approx(theirs, rel=1e-6)


def test_a_pale_copy_picks_its_original_out_and_noise_stands_anywhere():
    originals = images(40, side=8)
    pale = 0.3 + 0.2 * originals[7]
    others = torch.cat([originals[:7], originals[8:]])
    assert rank(pale, originals[7], others) == (1, 40)
    places = [rank(noise, originals[7], others).place for noise in images(60, side=8, seed=5)]
    assert 10 < np.mean(places) < 31


def test_a_flat_picture_picks_nothing_out():
    originals = images(10)
    assert rank(torch.full((1, 12, 12), 0.5), originals[0], originals[1:]).place == 10


def test_pairs_find_a_shuffled_batch_again():
    originals = images(6)
    order = [3, 0, 5, 1, 4, 2]
    assert [order[place] for place in match_images(originals[order] + 0.01, originals)] == list(range(6))
