"""Amplitude spectra of images: low frequencies, mixing two of them, and FedDG's bank of all clients' spectra.

An image's amplitudes determine much of its style (brightness, contrast, tint, softness), its phases the
content. Images are real, so half of the spectrum determines the rest (A(-u, -v) = A(u, v)): everything here
works on that half. Spectra are in orthonormal scale: images on the scale 0..1 have amplitudes up to the side
of the image, which half precision represents without overflow.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from unseen.methods._shared import bank_of_others
from unseen.training import ClientWork

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
    """Replace amplitudes in the window by (1 - share) * own + share * partner's, keeping every phase.

    partners  amplitudes in the window, one set per image, as `low_amplitudes` returns them
    shares    one number in [0, 1] per image
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


SPECTRA = "low-frequency amplitude spectra of images"
_BATCH = 256


def own_spectra(work: ClientWork, *, window: float, most: int | None) -> Tensor:
    """Compute the amplitudes in the window of `most` training images, or of all, without augmentation.

    Half precision: its error of 0.05 % is far below what mixing changes, and the bank is sent every round.
    """
    drawn = torch.randperm(len(work.train), generator=work.generator("spectra"))[:most].sort().values
    parts = [
        low_amplitudes(
            work.prepare.normalize.scale(work.train.gather(positions).inputs), window=window
        ).half()
        for positions in drawn.split(_BATCH)
    ]
    return torch.cat(parts)


class Partners:
    """Spectra of the other clients, to mix with."""

    def __init__(self, received: Mapping[str, Tensor], client: str) -> None:
        others = bank_of_others(received, SPECTRA, client)
        self.clients = len(others)
        self._sizes = torch.tensor([len(spectra) for spectra in others])
        self._first = self._sizes.cumsum(0) - self._sizes
        self._spectra = torch.cat(others) if others else torch.empty(0)

    def draw(self, count: int, *, generator: torch.Generator) -> Tensor:
        """Draw a client uniformly for every image, and one of its spectra."""
        chosen = torch.randint(self.clients, (count,), generator=generator)
        place = (torch.rand(count, generator=generator, dtype=torch.float64) * self._sizes[chosen]).long()
        return self._spectra[self._first[chosen] + place].float()
