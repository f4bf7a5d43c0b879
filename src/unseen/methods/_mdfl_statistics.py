"""What an MDFL client tells of its features: their sum and number for every (domain, class) pair it holds."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from unseen.models import Network
from unseen.training import ClientWork
from unseen.training.losses.boda import class_feature_sums

SUMS, COUNTS = "class feature sums", "class counts"
BATCH = 256


def class_statistics(work: ClientWork, *, most: int | None) -> dict[str, Tensor]:
    """Sum the features of the training samples by (domain, class): evaluation mode, no augmentation.

    With `most` given, a pair's mean comes from that many samples drawn from it, and its sum is that
    mean times the pair's true count: sums of several clients still merge into one mean.
    """
    network = cast(Network, work.module)
    shape = (len(work.train.domain_names), len(work.train.classes))
    pairs = work.train.domains * shape[1] + work.train.targets
    chosen = torch.arange(len(pairs))
    if most is not None:
        chosen = at_most_of_each(pairs, most, generator=work.generator("class means"))
    sums = torch.zeros(*shape, network.feature_size, dtype=torch.float64)
    network.eval()
    with torch.inference_mode():
        for positions in chosen.split(BATCH):
            batch = work.prepare(work.train.gather(positions))
            features = network.features(batch.inputs).cpu()
            sums += class_feature_sums(features, batch.targets.cpu(), batch.domains.cpu(), shape=shape)[0]
    counts = pairs.bincount(minlength=shape[0] * shape[1]).view(shape)
    drawn = pairs[chosen].bincount(minlength=counts.numel()).view(shape)
    sums *= (counts / drawn.clamp(min=1))[..., None]
    return {SUMS: sums.float(), COUNTS: counts}


def at_most_of_each(groups: Tensor, most: int, *, generator: torch.Generator) -> Tensor:
    """Draw the positions of `most` members of each group, or of all where it has fewer, in order."""
    shuffled = torch.randperm(len(groups), generator=generator)
    ordered = shuffled[groups[shuffled].argsort(stable=True)]
    sizes = groups.bincount()
    first = sizes.cumsum(0) - sizes
    rank = torch.arange(len(groups)) - first[groups[ordered]]
    return ordered[rank < most].sort().values
