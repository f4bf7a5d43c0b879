"""What sites say of their data before a run, and the data set without samples that is made of it.

The stand-in has as many samples of every class in every domain as there are at the sites. So everything
that depends on numbers and names alone (clients, sizes of splits, the model's outputs) comes out as on
one machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from unseen.data import DataSet, Task
from unseen.data.site_data import SiteSamples
from unseen.errors import UnseenError
from unseen.privacy import DisclosureEntry, DisclosureLog
from unseen.runs.records import Record

NAMES = "names of the site and of its classes"
SHAPE = "shape of a sample, fingerprint of the data"


@dataclass(frozen=True)
class SiteSummary:
    """What one site says of its data.

    counts    how many samples of each class; for regression, of all
    shape     of a sample as it is stored
    measured  whether samples are measured values, not pixels of 8 bits
    """

    task: Task
    classes: tuple[str, ...]
    counts: dict[str, int]
    shape: tuple[int, ...]
    fingerprint: str
    measured: bool = False

    @classmethod
    def of(cls, samples: SiteSamples) -> SiteSummary:
        """Describe a site's samples."""
        return cls(
            task=samples.task,
            classes=samples.classes,
            counts=samples.counts(),
            shape=tuple(samples.inputs.shape[1:]),
            fingerprint=samples.fingerprint,
            measured=bool(samples.inputs.dtype != np.uint8),
        )

    def to_dict(self) -> dict[str, Any]:
        """Describe in JSON's values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SiteSummary:
        """Read what came as JSON."""
        try:
            return cls(
                task=cast(Task, values["task"]),
                classes=tuple(values["classes"]),
                counts={str(name): int(count) for name, count in values["counts"].items()},
                shape=tuple(int(size) for size in values["shape"]),
                fingerprint=str(values["fingerprint"]),
                measured=bool(values["measured"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnseenError(f"told nothing usable of its data ({error!r})") from error


Census = dict[str, SiteSummary]
"""Every site's facts, by name."""


def merge_classes(census: Census) -> tuple[str, ...]:
    """The order of all classes: the sites' own where they all have the same, else the sorted union."""
    orders = {facts.classes for facts in census.values()}
    if len(orders) == 1:
        return next(iter(orders))
    return tuple(sorted({name for order in orders for name in order}))


def make_placeholder_data(census: Census, *, name: str) -> DataSet:
    """Make the data set that has the sites' numbers and none of their samples."""
    domains = tuple(sorted(census))
    first = census[domains[0]]
    for domain in domains[1:]:
        other = census[domain]
        if (other.task, other.shape, other.measured) != (first.task, first.shape, first.measured):
            raise UnseenError(
                f"site {domain} has {other.task} on samples of shape {other.shape}, site {domains[0]} "
                f"{first.task} on {first.shape}; all must have the same"
            )
    classes = merge_classes(census) if first.task == "classification" else ()
    targets, domain_of = [], []
    for number, domain in enumerate(domains):
        counts = census[domain].counts
        own = [counts.get(label, 0) for label in classes] if classes else [sum(counts.values())]
        targets.append(np.repeat(np.arange(len(own)), own))
        domain_of.append(np.full(sum(own), number, dtype=np.int64))
    labels = np.concatenate(targets)
    kind = np.float32 if first.measured else np.uint8
    return DataSet(
        name=name,
        task=first.task,
        inputs=np.broadcast_to(np.zeros((), dtype=kind), (len(labels), *first.shape)),
        targets=labels.astype(np.int64 if classes else np.float32),
        domain_of=np.concatenate(domain_of),
        domains=domains,
        classes=classes,
        fingerprint=_fingerprint(census, classes),
    )


def _fingerprint(census: Census, classes: tuple[str, ...]) -> str:
    described = (classes, [(site, census[site].fingerprint) for site in sorted(census)])
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


def census_disclosure(census: Census) -> list[Record]:
    """What the census let leave the sites, beside the numbers of samples that every run tells of."""
    left = DisclosureLog()
    for site, facts in census.items():
        names, about = "".join(facts.classes), 2 + len(facts.shape)
        left.add(site, [DisclosureEntry(NAMES, 1 + len(facts.classes), len((site + names).encode()))])
        left.add(site, [DisclosureEntry(SHAPE, about, 8 * about)])
    return left.entries()


def data_name(source: str) -> str:
    """What reports call the data: as on one machine where the sites are folders of one."""
    return Path(source).name if not Path(source).suffix else Path(source).stem
