"""Rebuilt pictures laid beside originals: how alike they are, and which count as rebuilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.audit.image_similarity import match_images, psnr, rank, ssim
from unseen.data import DataSet, Indices, Samples
from unseen.engine import Experiment
from unseen.seeding import numpy_generator, torch_generator

CLOSER = 0.2
"""By how much a rebuilt picture's SSIM must exceed that of a guess without an update."""
CANDIDATES = 500


@dataclass(frozen=True)
class Reconstruction:
    """One training image and what the attack made of it.

    place, candidates  where the original stands among the client's images, ordered by likeness to the
                       rebuilt picture
    guess              SSIM of the average picture, the best guess without an update
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
        """Whether it picks its original out among all candidates, and tells more than a guess does."""
        return self.place == 1 and self.ssim >= self.guess + CLOSER


def score_reconstructions(
    experiment: Experiment,
    rebuilt: Tensor,
    images: Mapping[str, Indices],
    *,
    holdings: Mapping[str, Indices],
    average: Tensor,
) -> tuple[Reconstruction, ...]:
    """Lay rebuilt pictures beside the images that they are closest to.

    images    the rows of each client that the pictures may show
    holdings  all training rows of each client, among which originals are to be picked out
    average   what pictures of this kind look like on average
    """
    data = experiment.data
    rows = [(client, int(row)) for client, chosen in images.items() for row in chosen]
    if not rows:
        return ()
    originals = pixels(data, [row for _, row in rows])
    laid = rebuilt[match_images(rebuilt, originals)]
    noise, structure = psnr(laid, originals).tolist(), ssim(laid, originals).tolist()
    guess = ssim(average.expand_as(originals), originals).tolist()
    pictures = []
    for number, (client, row) in enumerate(rows):
        drawing = numpy_generator(experiment.seed, "audit: candidates", row)
        others = drawing.permutation(holdings[client][holdings[client] != row])[: CANDIDATES - 1]
        found = rank(laid[number], originals[number], pixels(data, others))
        label = data.classes[int(data.targets[row])]
        numbers = (noise[number], structure[number], *found, guess[number])
        pictures.append(Reconstruction(client, label, originals[number], laid[number], *numbers))
    return tuple(pictures)


def pixels(data: DataSet, rows: Sequence[int] | Indices) -> Tensor:
    """Images of the store on the scale 0..1."""
    samples = Samples(data, np.asarray(rows, dtype=np.int64))
    return samples.gather(torch.arange(len(samples))).inputs.float().div(255).contiguous()


def average_image(experiment: Experiment) -> Tensor:
    """The mean of images that the sources kept out of training, or grey where they kept none."""
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
    """How like the originals a picture is that was made without looking at any update."""

    psnr: float
    ssim: float


def guesses(originals: Tensor, average: Tensor, *, seed: int) -> dict[str, Guess]:
    """Random pixels, and the average picture."""
    generator = torch_generator(seed, "audit: random pictures")
    made = {"random": torch.rand(originals.shape, generator=generator), "average": average}
    return {
        name: Guess(
            float(psnr(guess.expand_as(originals), originals).mean()),
            float(ssim(guess.expand_as(originals), originals).mean()),
        )
        for name, guess in made.items()
    }
