"""Mixing amplitudes, against NumPy's whole shifted spectrum; phases and high frequencies stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.methods.feddg.spectra import low_amplitudes, low_frequencies, mix_amplitudes

sides = st.integers(3, 24)
windows = st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.4, 0.49])


def random_images(height, width, *, count=2, channels=3, seed=0):
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(seed))


def literal_mix(image, partner, share, window):
    """One channel: shift the low frequencies to the centre, cut out a rectangle, mix, go back."""
    height, width = image.shape
    own, other = (np.fft.fftshift(np.fft.fft2(values.astype(np.float64))) for values in (image, partner))
    amplitude, phase = np.abs(own), np.angle(own)
    row, column = int(np.floor(window * height + 1e-9)), int(np.floor(window * width + 1e-9))
    middle_row, middle_column = height // 2, width // 2
    area = (
        slice(middle_row - row, middle_row + row + 1),
        slice(middle_column - column, middle_column + column + 1),
    )
    assert amplitude[area].shape == (2 * row + 1, 2 * column + 1)
    amplitude[area] = (1 - share) * amplitude[area] + share * np.abs(other)[area]
    back = np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * phase)))
    assert np.abs(back.imag).max() < 1e-9
    return back.real


@given(height=sides, width=sides, window=windows, share=st.floats(0, 1))
def test_equals_the_whole_spectrum_with_numpy(height, width, window, share):
    images, partners = random_images(height, width), random_images(height, width, seed=1)
    shares = torch.tensor([share, 1 - share])
    mixed = mix_amplitudes(images, low_amplitudes(partners, window=window), shares, window=window)
    for n in range(2):
        for c in range(3):
            expected = literal_mix(images[n, c].numpy(), partners[n, c].numpy(), float(shares[n]), window)
            np.testing.assert_allclose(mixed[n, c].numpy(), expected, atol=2e-6)


@given(height=sides, width=sides, window=windows, share=st.floats(0, 1))
def test_phases_stay_everywhere_and_amplitudes_outside_the_window(height, width, window, share):
    images = random_images(height, width).double()
    partners = low_amplitudes(random_images(height, width, seed=1).double(), window=window)
    mixed = mix_amplitudes(images, partners, torch.tensor([share, share]), window=window)
    before, after = torch.fft.fft2(images), torch.fft.fft2(mixed)
    clear = (before.abs() > 1e-4) & (after.abs() > 1e-4)
    turn = torch.polar(torch.ones_like(before.real), after.angle() - before.angle())
    assert (turn[clear] - 1).abs().max() < 1e-5
    low = torch.zeros(height, width, dtype=torch.bool)
    row, column = int(window * height + 1e-9), int(window * width + 1e-9)
    for u in range(-row, row + 1):
        low[u, range(-column, column + 1)] = True
    torch.testing.assert_close(after.abs()[..., ~low], before.abs()[..., ~low], rtol=1e-6, atol=1e-6)


def test_phases_stay_in_single_precision_too():
    images = random_images(28, 28)
    partners = low_amplitudes(random_images(28, 28, seed=1), window=0.1).half()
    mixed = mix_amplitudes(images, partners, torch.tensor([0.3, 0.9]), window=0.1)
    before, after = torch.fft.fft2(images.double()), torch.fft.fft2(mixed.double())
    clear = (before.abs() > 1) & (after.abs() > 1)
    turn = torch.polar(torch.ones_like(before.real), after.angle() - before.angle())
    assert (turn[clear] - 1).abs().max() < 1e-5


def test_nothing_of_the_partner_is_the_image_and_all_of_it_is_the_partners_look():
    images, partners = random_images(16, 12), random_images(16, 12, seed=1) * 0.4
    low = low_amplitudes(partners, window=0.2)
    same = mix_amplitudes(images, low, torch.zeros(2), window=0.2)
    torch.testing.assert_close(same, images, atol=1e-6, rtol=0)
    taken = mix_amplitudes(images, low, torch.ones(2), window=0.2)
    torch.testing.assert_close(low_amplitudes(taken, window=0.2), low, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(taken.mean((2, 3)), partners.mean((2, 3)))
    assert (taken - images).abs().mean() > 0.1


def test_no_window_is_brightness_and_half_is_everything():
    images, partners = random_images(8, 8), random_images(8, 8, seed=1)
    assert low_amplitudes(images, window=0).shape == (2, 3, 1, 1)
    brighter = mix_amplitudes(images, low_amplitudes(partners, window=0), torch.ones(2), window=0)
    shift = (partners - images).mean((2, 3), keepdim=True)
    torch.testing.assert_close(brighter, images + shift, atol=1e-6, rtol=0)
    whole = mix_amplitudes(images, low_amplitudes(partners, window=0.5), torch.ones(2), window=0.5)
    torch.testing.assert_close(
        torch.fft.fft2(whole).abs(), torch.fft.fft2(partners).abs(), atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("side", "window", "rows", "columns"),
    [(28, 0.1, 5, 3), (224, 0.1, 45, 23), (100, 0.29, 59, 30), (8, 0.5, 8, 5), (7, 0.5, 7, 4)],
)
def test_how_much_a_window_holds(side, window, rows, columns):
    found, width = low_frequencies(side, side, window=window)
    assert (len(found), width) == (rows, columns)
    assert low_amplitudes(torch.zeros(1, 1, side, side), window=window).shape == (1, 1, rows, columns)


def test_half_precision_holds_the_brightest_picture():
    white = torch.ones(1, 3, 1024, 1024)
    assert low_amplitudes(white, window=0.01).half().amax() == 1024
