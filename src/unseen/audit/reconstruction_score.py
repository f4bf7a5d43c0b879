"""Score reconstructions against the originals: how similar they are, and which count as rebuilt."""

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
