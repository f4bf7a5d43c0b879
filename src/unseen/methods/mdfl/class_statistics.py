"""Class statistics of MDFL: feature sums and counts per (domain, class) pair, sent by clients to the server.

The server keeps a table of the pairs' means, and computes from it how transferable classes are.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from unseen.methods.mdfl.boda import class_feature_sums
from unseen.models import Network
from unseen.training import ClientWork

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


MEANS = "class means"
MOST_PAIRS = 40
"""A transferability matrix with a longer side is not recorded."""


def merge_statistics(extras: Sequence[Mapping[str, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """Add up what clients sent; None if no client sent statistics in this round."""
    sent = [extra for extra in extras if SUMS in extra]
    if not sent:
        return None
    sums = torch.stack([extra[SUMS].double() for extra in sent]).sum(0)
    return sums, torch.stack([extra[COUNTS] for extra in sent]).sum(0)


def renew_table(state: MutableMapping[str, Tensor], sums: Tensor, counts: Tensor, *, momentum: float) -> None:
    """Update the table with the reported pairs: mean <- (1 - momentum) new + momentum old.

    A new pair takes its mean unchanged; one that was not reported in this round (its clients did not
    participate) keeps its former mean and count.
    """
    reported = counts > 0
    means = (sums / counts.clamp(min=1)[..., None]).float()
    if MEANS in state:
        former, known = state[MEANS], state[COUNTS] > 0
        blended = torch.where(known[..., None], torch.lerp(means, former, momentum), means)
        means = torch.where(reported[..., None], blended, former)
        counts = torch.where(reported, counts, state[COUNTS])
    state[MEANS], state[COUNTS] = means, counts


def transferability(means: Tensor, counts: Tensor) -> dict[str, Any]:
    """Describe the distances between pairs (equation 1 with the mean feature instead of z).

    `alignment` is the mean distance between domains of one class over that between classes: it falls when
    classes move together across domains, whatever the scale of the features.
    """
    domains, classes = counts.nonzero(as_tuple=True)
    chosen = means[domains, classes].double()
    distances = torch.cdist(chosen, chosen, compute_mode="donot_use_mm_for_euclid_dist")
    same_class = classes[:, None] == classes
    across = same_class & (domains[:, None] != domains)
    described: dict[str, Any] = {}
    if bool(across.any()) and not bool(same_class.all()):
        apart = float(distances[~same_class].mean())
        described["alignment"] = float(distances[across].mean()) / apart if apart else None
    if len(chosen) <= MOST_PAIRS:
        described["transferability"] = {
            "domains": domains.tolist(),
            "classes": classes.tolist(),
            "samples": counts[domains, classes].tolist(),
            "distances": [[float(f"{value:.4g}") for value in row] for row in distances.tolist()],
        }
    return described
