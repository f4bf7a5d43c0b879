"""Score reconstructions against the originals: how similar they are (PSNR, SSIM), and which count as rebuilt.

Images are floats on the scale 0..1 (n, channels, height, width).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.data import DataSet, Indices, Samples
from unseen.engine import Experiment
from unseen.seeding import numpy_generator, torch_generator

LARGEST_PSNR = 100.0
"""The value for two equal images, whose ratio would be infinite."""
_WINDOW = 7
_C1, _C2 = 0.01**2, 0.03**2
_TINY = 1e-12


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Compute the peak signal-to-noise ratio of every pair, in decibels."""
    error = (images - others).square().mean(dim=(1, 2, 3))
    return (-10 * torch.log10(error.clamp(min=_TINY))).clamp(max=LARGEST_PSNR)


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Compute the structural similarity of every pair (Wang et al. 2004) with a flat window of 7x7 or less.

    Variances are those of samples (divided by one less), the mean is taken over all whole windows.
    """
    side = min(_WINDOW, *images.shape[2:])
    side -= 1 - side % 2
    pixels = side * side
    unbiased = pixels / max(pixels - 1, 1)

    def window(values: Tensor) -> Tensor:
        return F.avg_pool2d(values, side, stride=1)

    first, second = images.double(), others.double()
    mean1, mean2 = window(first), window(second)
    spread1 = unbiased * (window(first * first) - mean1 * mean1)
    spread2 = unbiased * (window(second * second) - mean2 * mean2)
    common = unbiased * (window(first * second) - mean1 * mean2)
    light = (2 * mean1 * mean2 + _C1) / (mean1.square() + mean2.square() + _C1)
    structure = (2 * common + _C2) / (spread1 + spread2 + _C2)
    similarity: Tensor = (light * structure).mean(dim=(1, 2, 3)).to(images.dtype)
    return similarity


class Rank(NamedTuple):
    """Position of the true original when candidates are ordered by similarity; 1 = identified."""

    place: int
    candidates: int


def rank(rebuilt: Tensor, original: Tensor, others: Tensor) -> Rank:
    """Order the original and other images by their correlation with a rebuilt one.

    Correlation, because a rebuilt image that is too pale or too bright reveals as much. A
    candidate that is as similar as the original is placed before it.
    """
    candidates = _standardize(torch.cat([original[None], others]))
    similarity = candidates @ _standardize(rebuilt[None])[0]
    return Rank(int((similarity[1:] >= similarity[0]).sum()) + 1, len(candidates))


def _standardize(images: Tensor) -> Tensor:
    flat = images.flatten(1).double()
    flat = flat - flat.mean(dim=1, keepdim=True)
    lengths: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return flat / lengths.clamp(min=_TINY)


def match_images(rebuilt: Tensor, originals: Tensor) -> list[int]:
    """Assign a rebuilt image to each original: the closest pair first, each used once.

    A batch has no order, so this is how an owner who knows the originals would compare them.
    """
    distances = torch.cdist(originals.flatten(1), rebuilt.flatten(1))
    partner = [-1] * len(originals)
    for _ in range(min(len(originals), len(rebuilt))):
        row, column = divmod(int(distances.argmin()), distances.shape[1])
        partner[row] = column
        distances[row, :] = torch.inf
        distances[:, column] = torch.inf
    return partner


CLOSER = 0.2
"""By how much the SSIM of a rebuilt image must exceed that of a guess without an update."""
CANDIDATES = 500


@dataclass(frozen=True)
class Reconstruction:
    """One training image and its reconstruction by the attack.

    place, candidates  position of the original among the client's images, ordered by similarity to the
                       reconstruction
    guess              SSIM of the average image, the best guess without an update
    """

    client: str
    label: str
    original: Tensor
    rebuilt: Tensor
    psnr: float
    ssim: float
    place: int
    candidates: int
    guess: float

    @property
    def recognised(self) -> bool:
        """Whether it identifies its original among all candidates, and is closer than a guess."""
        return self.place == 1 and self.ssim >= self.guess + CLOSER


def score_reconstructions(
    experiment: Experiment,
    rebuilt: Tensor,
    images: Mapping[str, Indices],
    *,
    holdings: Mapping[str, Indices],
    average: Tensor,
) -> tuple[Reconstruction, ...]:
    """Compare rebuilt images with the training images that they are closest to.

    images    the rows of each client that the rebuilt images may show
    holdings  all training rows of each client, among which originals are to be identified
    average   the mean of images of this kind
    """
    data = experiment.data
    rows = [(client, int(row)) for client, chosen in images.items() for row in chosen]
    if not rows:
        return ()
    originals = pixels(data, [row for _, row in rows])
    laid = rebuilt[match_images(rebuilt, originals)]
    noise, structure = psnr(laid, originals).tolist(), ssim(laid, originals).tolist()
    guess = ssim(average.expand_as(originals), originals).tolist()
    scored = []
    for number, (client, row) in enumerate(rows):
        drawing = numpy_generator(experiment.seed, "audit: candidates", row)
        others = drawing.permutation(holdings[client][holdings[client] != row])[: CANDIDATES - 1]
        found = rank(laid[number], originals[number], pixels(data, others))
        label = data.classes[int(data.targets[row])]
        numbers = (noise[number], structure[number], *found, guess[number])
        scored.append(Reconstruction(client, label, originals[number], laid[number], *numbers))
    return tuple(scored)


def pixels(data: DataSet, rows: Sequence[int] | Indices) -> Tensor:
    """Return images of the data set on the scale 0..1."""
    samples = Samples(data, np.asarray(rows, dtype=np.int64))
    return samples.gather(torch.arange(len(samples))).inputs.float().div(255).contiguous()


def average_image(experiment: Experiment) -> Tensor:
    """Return the mean of images that the sources kept out of training, or grey where they kept none."""
    federation = experiment.federation
    kept = [
        experiment.evaluation_indices(domain, split)
        for domain in federation.sources
        for split in ("validation", "test")
    ]
    rows = numpy_generator(experiment.seed, "audit: average").permutation(np.concatenate(kept))[:CANDIDATES]
    if not len(rows):
        channels, height, width = experiment.data.input_shape
        return torch.full((1, channels, height, width), 0.5)
    return pixels(experiment.data, rows).mean(dim=0, keepdim=True)


class Guess(NamedTuple):
    """Similarity to the originals of an image that was made without any update."""

    psnr: float
    ssim: float


def guesses(originals: Tensor, average: Tensor, *, seed: int) -> dict[str, Guess]:
    """Score random pixels and the average image as reconstructions."""
    generator = torch_generator(seed, "audit: random pictures")
    made = {"random": torch.rand(originals.shape, generator=generator), "average": average}
    return {
        name: Guess(
            float(psnr(guess.expand_as(originals), originals).mean()),
            float(ssim(guess.expand_as(originals), originals).mean()),
        )
        for name, guess in made.items()
    }
