"""Amplitude spectra of images: low frequencies, and mixing them with those of other images.

A picture's amplitudes carry much of its look (brightness, contrast, tint, softness), its phases what is
where. Images are real, so half of the spectrum says it all (A(-u, -v) = A(u, v)): everything here works on
that half. Spectra are in orthonormal scale: images on the scale 0..1 have amplitudes up to the side of the
image, which half precision holds without overflow.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDING = 1e-9
"""Tolerance so that 0.29 of 100 pixels is 29."""


def low_frequencies(height: int, width: int, *, window: float) -> tuple[Tensor, int]:
    """Find the rows, and the number of columns, of a half spectrum in the window (FedDG's mask M).

    A frequency (u, v) is in the window if |u| <= floor(window * height) and |v| <= floor(window * width):
    0 is the mean brightness only, 0.5 the whole spectrum.
    """
    most_rows, most_columns = (int(window * side + _ROUNDING) for side in (height, width))
    rows = torch.fft.fftfreq(height, 1 / height).abs().round() <= most_rows
    return rows.nonzero().flatten(), min(most_columns, width // 2) + 1


def low_amplitudes(images: Tensor, *, window: float) -> Tensor:
    """Compute the amplitudes of each image and channel in the window: (n, channels, rows, columns)."""
    rows, columns = low_frequencies(*images.shape[-2:], window=window)
    spectra = torch.fft.rfft2(images, norm="ortho")
    amplitudes: Tensor = spectra[..., :columns].index_select(-2, rows.to(images.device)).abs()
    return amplitudes


def mix_amplitudes(images: Tensor, partners: Tensor, shares: Tensor, *, window: float) -> Tensor:
    """Bring amplitudes in the window to (1 - share) * own + share * partner's, keeping every phase.

    partners  amplitudes in the window, one set an image, as `low_amplitudes` gives them
    shares    one number in [0, 1] an image
    """
    height, width = images.shape[-2:]
    rows, columns = low_frequencies(height, width, window=window)
    rows = rows.to(images.device)
    spectra = torch.fft.rfft2(images, norm="ortho")
    low = spectra[..., :columns].index_select(-2, rows)
    mixed = torch.lerp(low.abs(), partners.to(low.real.dtype), shares.view(-1, 1, 1, 1).to(low.real.dtype))
    spectra[..., rows, :columns] = torch.polar(mixed, low.angle())
    mixed_images: Tensor = torch.fft.irfft2(spectra, s=(height, width), norm="ortho")
    return mixed_images
