"""Per-site summaries of the data, collected before a run, and a placeholder data set built from them.

The placeholder has as many samples per class and domain as the sites have, but no content. So everything
that depends on counts and names only (clients, split sizes, the model's outputs) equals a run on one
machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unseen.data import DataSet
from unseen.data.site_data import SiteSamples
from unseen.errors import UnseenError
from unseen.privacy import DisclosureEntry, DisclosureLog
from unseen.runs.records import Record
from unseen.tasks import TASKS

NAMES = "names of the site and of its classes"
SHAPE = "shape of a sample, fingerprint of the data"


@dataclass(frozen=True)
class SiteSummary:
    """Summary of one site's data.

    counts    samples per class; for regression, in total
    shape     of a sample as it is stored
    measured  whether samples are measured values, not pixels of 8 bits
    """

    task: str
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
        """Convert to JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SiteSummary:
        """Read a summary from JSON values."""
        try:
            return cls(
                task=str(values["task"]),
                classes=tuple(values["classes"]),
                counts={str(name): int(count) for name, count in values["counts"].items()},
                shape=tuple(int(size) for size in values["shape"]),
                fingerprint=str(values["fingerprint"]),
                measured=bool(values["measured"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnseenError(f"sent an unusable summary of its data ({error!r})") from error


Census = dict[str, SiteSummary]
"""Every site's summary, by name."""


def merge_classes(census: Census) -> tuple[str, ...]:
    """Return the order of all classes: the sites' own order if they agree, else the sorted union."""
    orders = {facts.classes for facts in census.values()}
    if len(orders) == 1:
        return next(iter(orders))
    return tuple(sorted({name for order in orders for name in order}))


def make_placeholder_data(census: Census, *, name: str) -> DataSet:
    """Build a data set with the sites' sample counts and none of their samples."""
    domains = tuple(sorted(census))
    first = census[domains[0]]
    for domain in domains[1:]:
        other = census[domain]
        if (other.task, other.shape, other.measured) != (first.task, first.shape, first.measured):
            raise UnseenError(
                f"site {domain} has {other.task} on samples of shape {other.shape}, site {domains[0]} "
                f"{first.task} on {first.shape}; all must be the same"
            )
    classes = merge_classes(census) if TASKS[first.task].has_classes else ()
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
    """List what the summaries disclose, in addition to the sample counts that every run records."""
    left = DisclosureLog()
    for site, facts in census.items():
        names, about = "".join(facts.classes), 2 + len(facts.shape)
        left.add(site, [DisclosureEntry(NAMES, 1 + len(facts.classes), len((site + names).encode()))])
        left.add(site, [DisclosureEntry(SHAPE, about, 8 * about)])
    return left.entries()


def data_name(source: str) -> str:
    """Return the data set's name in reports: as on one machine if the sites are folders of one data set."""
    return Path(source).name if not Path(source).suffix else Path(source).stem
