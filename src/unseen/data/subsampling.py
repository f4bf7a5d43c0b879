"""Balanced subsamples: at most so many samples per domain, with classes as equal as possible.

The subsample depends on a domain's own samples alone, so that a site draws the same one as a run on one
machine, and it is the same for every seed of training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.data.site_data import SiteSamples, fingerprint_site
from unseen.errors import UsageError
from unseen.seeding import numpy_generator
from unseen.tasks import TASKS


def subsample(data: DataSet, most: int | None) -> DataSet:
    """Keep at most `most` samples of every domain; None keeps all."""
    if most is None:
        return data
    rows = np.sort(
        np.concatenate(
            [
                (own := data.indices(domain))[_draw(data.targets[own], data.task, most, domain)]
                for domain in data.domains
            ]
        )
    )
    per_sample = ("inputs", "targets", "domain_of", "group_of", "split_group_of", "split_of")
    kept = {name: array[rows] for name in per_sample if (array := getattr(data, name)) is not None}
    return replace(data, **kept, notes=(*data.notes, _note(most)), fingerprint="")


def subsample_site(samples: SiteSamples, most: int | None) -> SiteSamples:
    """Keep at most `most` samples of a site; None keeps all."""
    if most is None:
        return samples
    # Classes are numbered by the site, in the order of the whole data set wherever both are sorted.
    rows = _draw(samples.targets, samples.task, most, samples.site)
    targets, keys = samples.targets[rows], samples.split_group_of
    return replace(
        samples,
        inputs=samples.inputs[rows],
        targets=targets,
        split_group_of=None if keys is None else keys[rows],
        fingerprint=fingerprint_site(samples.fingerprint.encode(), rows, samples.classes),
        notes=(*samples.notes, _note(most)),
    )


def _draw(targets: npt.NDArray[Any], task: str, most: int, domain: str) -> Indices:
    """Draw positions, sorted: every class to the same level, the rest to random classes that have more."""
    if most < 1:
        raise UsageError(f"--samples-per-domain must be at least 1, not {most}")
    if len(targets) <= most:
        return np.arange(len(targets))
    generator = numpy_generator(0, "subsample", domain)
    order = generator.permutation(len(targets))
    if not TASKS[task].has_classes:
        return np.sort(order[:most])
    _, classes, counts = np.unique(targets, return_inverse=True, return_counts=True)
    wanted = share_equally(counts, most, generator)
    order = order[np.argsort(classes[order], kind="stable")]
    place = np.arange(len(targets)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[place < np.repeat(wanted, counts)])


def share_equally(counts: Indices, total: int, generator: np.random.Generator) -> Indices:
    """Take `total` from classes of these sizes, none more than one above another that still has some."""
    level = 0
    while np.minimum(counts, level + 1).sum() <= total and level < counts.max():
        level += 1
    taken = np.minimum(counts, level)
    more = generator.permutation(np.flatnonzero(counts > level))[: total - int(taken.sum())]
    taken[more] += 1
    return taken


def _note(most: int) -> str:
    return f"at most {most} samples per domain, classes as equal as possible (--samples-per-domain)"
