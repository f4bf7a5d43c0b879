"""Per-site summaries of the data, collected before a run, and a placeholder data set built from them.

The placeholder has as many samples per class and domain as the sites have, but no content. So everything
that depends on counts and names only (clients, split sizes, the model's outputs) equals a run on one
machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unseen.data import DataSet
from unseen.data.dataset import Indices
from unseen.data.site_data import SiteSamples
from unseen.deploy.tables.table_summary import TableSummary, merge_columns, sort_numbers
from unseen.errors import UnseenError
from unseen.federation import Split, SplitFractions
from unseen.federation.split import split_groups
from unseen.printable import is_printable
from unseen.privacy import DisclosureEntry, DisclosureLog
from unseen.runs.records import Record
from unseen.tasks import TASKS

NAMES = "names of the site and of its classes"
SHAPE = "shape of a sample, fingerprint of the data"
PARTS = "numbers of samples per class in training, validation and test"
COLUMNS = "names of table columns and the different texts in them"
MOST_SAMPLES, MOST_CLASSES, LONGEST_NAME = 20_000_000, 100_000, 255
MOST_SIDES, LARGEST_SAMPLE = 4, 2**30
"""Bounds of a site's summary: samples, classes and characters of a name; sides and numbers of a sample."""


@dataclass(frozen=True)
class SiteSummary:
    """Summary of one site's data.

    counts    samples per class; for regression, in total
    shape     of a sample as it is stored
    measured  whether samples are measured values, not pixels of 8 bits
    table     the columns of a table; None for images
    splits    samples per class in each part (`Split`) of a split by group, which only the site can compute;
              None in a split by sample, where sizes follow from the counts
    """

    task: str
    classes: tuple[str, ...]
    counts: dict[str, int]
    shape: tuple[int, ...]
    fingerprint: str
    measured: bool = False
    table: TableSummary | None = None
    splits: dict[str, tuple[int, ...]] | None = None

    @classmethod
    def of(cls, samples: SiteSamples, splits: dict[str, tuple[int, ...]] | None = None) -> SiteSummary:
        """Describe a site's samples."""
        return cls(
            task=samples.task,
            classes=samples.classes,
            counts=samples.counts(),
            shape=tuple(samples.inputs.shape[1:]),
            fingerprint=samples.fingerprint,
            measured=bool(samples.inputs.dtype != np.uint8),
            table=TableSummary.of(samples),
            splits=splits,
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; parts of a split only where there are some."""
        values = asdict(self)
        if self.splits is None:
            del values["splits"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SiteSummary:
        """Read a summary from JSON values; refuse one that no data of a site can have.

        The coordinator builds a data set of this size, so sizes are bounded.
        """
        keys = ("task", "classes", "counts", "shape", "fingerprint", "measured")
        found: list[Any] = [values.get(key) for key in keys]
        task, classes, counts, shape, fingerprint, measured = found
        named = isinstance(classes, list | tuple) and all(isinstance(name, str) for name in classes)
        sized = isinstance(shape, list | tuple) and all(_is_count(size) and size > 0 for size in shape)
        counted = isinstance(counts, dict) and all(map(_is_count, counts.values()))
        fine = {
            "task": isinstance(task, str) and task in TASKS,
            "classes": named and len(set(classes)) == len(classes) <= MOST_CLASSES and _are_names(classes),
            "shape": sized and 1 <= len(shape) <= MOST_SIDES and math.prod(shape) <= LARGEST_SAMPLE,
            "counts": counted and 0 < sum(counts.values()) <= MOST_SAMPLES,
            "fingerprint": isinstance(fingerprint, str) and is_printable(fingerprint, longest=128),
            "measured": isinstance(measured, bool),
        }
        fine["counts"] = fine["counts"] and fine["task"] and fine["classes"]
        if fine["counts"]:
            own = set(classes) if TASKS[task].has_classes else {""}
            fine["counts"] = set(counts) <= own
        splits = values.get("splits")
        fine["splits"] = fine["counts"] and _are_parts(splits, counts)
        wrong = [name for name, good in fine.items() if not good]
        if wrong:
            raise UnseenError(f"sent an unusable summary of its data: its {wrong[0]} cannot be")
        return cls(
            task=str(task),
            classes=tuple(classes),
            counts=dict(counts),
            shape=tuple(shape),
            fingerprint=str(fingerprint),
            measured=bool(measured),
            table=TableSummary.from_dict(values.get("table"), tuple(classes)),
            splits=None if splits is None else {name: tuple(sizes) for name, sizes in splits.items()},
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_SAMPLES


def _are_parts(splits: object, counts: Mapping[str, int]) -> bool:
    """Check that the parts of each class sum to its count; None is a split by sample."""
    if splits is None:
        return True
    return (
        isinstance(splits, dict)
        and set(splits) == set(counts)
        and all(
            isinstance(sizes, list | tuple)
            and len(sizes) == len(Split)
            and all(map(_is_count, sizes))
            and sum(sizes) == counts[name]
            for name, sizes in splits.items()
        )
    )


def count_splits(
    samples: SiteSamples, fractions: SplitFractions, *, seed: int
) -> dict[str, tuple[int, ...]] | None:
    """Count a site's samples per class and part in a split by group; None in a split by sample."""
    if samples.split_group_of is None or not fractions.by_group:
        return None
    labels = split_groups(samples.split_group_of, fractions, seed=seed)
    has_classes = TASKS[samples.task].has_classes
    rows = {
        name: samples.targets == number if has_classes else np.ones(len(labels), dtype=bool)
        for number, name in enumerate(samples.classes or ("",))
    }
    return {
        name: tuple(np.bincount(labels[chosen], minlength=len(Split)).tolist())
        for name, chosen in rows.items()
    }


def _are_names(classes: Sequence[str]) -> bool:
    return all(name and is_printable(name, longest=LONGEST_NAME) for name in classes)


Census = dict[str, SiteSummary]
"""Every site's summary, by name."""


def merge_classes(census: Census) -> tuple[str, ...]:
    """Return the order of all classes: the sites' own order if they agree, else the sorted union."""
    orders = {facts.classes for facts in census.values()}
    if len(orders) == 1:
        return next(iter(orders))
    names = {name for order in orders for name in order}
    numeric = all(facts.table is not None and facts.table.numeric_target for facts in census.values())
    return sort_numbers(names) if numeric else tuple(sorted(names))


def make_placeholder_data(census: Census, *, name: str) -> DataSet:
    """Build a data set with the sites' sample counts and none of their samples."""
    domains = tuple(sorted(census))
    first = census[domains[0]]
    for domain in domains[1:]:
        other = census[domain]
        if first.table and other.table and first.task != other.task:
            raise UnseenError(
                f"the target is read as {other.task} at site {domain} and as {first.task} at site "
                f"{domains[0]}: choose with --task"
            )
        if first.table and other.table:
            continue
        if _form(other) != _form(first):
            raise UnseenError(
                f"site {domain} has {other.task} on samples of shape {other.shape}, site {domains[0]} "
                f"{first.task} on {first.shape}; all must be the same"
            )
    classes = merge_classes(census) if TASKS[first.task].has_classes else ()
    targets, domain_of, parts = [], [], []
    for number, domain in enumerate(domains):
        counts = census[domain].counts
        own = [counts.get(label, 0) for label in classes] if classes else [sum(counts.values())]
        targets.append(np.repeat(np.arange(len(own)), own))
        domain_of.append(np.full(sum(own), number, dtype=np.int64))
        parts.append(_parts_in_order(census[domain], classes or ("",), sum(own)))
    labels = np.concatenate(targets)
    tables = {domain: table for domain in domains if (table := census[domain].table)}
    columns, notes = merge_columns(tables, rows=len(labels)) if tables else ((), ())
    shape = (len(columns),) if columns else first.shape
    kind = np.float32 if first.measured else np.uint8
    return DataSet(
        name=name,
        task=first.task,
        inputs=np.broadcast_to(np.zeros((), dtype=kind), (len(labels), *shape)),
        targets=labels.astype(np.int64 if classes else np.float32),
        domain_of=np.concatenate(domain_of),
        domains=domains,
        classes=classes,
        fingerprint=_fingerprint(census, classes),
        columns=columns,
        notes=notes,
        split_of=np.concatenate(parts) if any(facts.splits for facts in census.values()) else None,
    )


def _parts_in_order(facts: SiteSummary, classes: tuple[str, ...], samples: int) -> Indices:
    """List the part of every placeholder sample, class after class; -1 in a split by sample."""
    if facts.splits is None:
        return np.full(samples, -1, dtype=np.int64)
    sizes = [facts.splits.get(name, (0,) * len(Split)) for name in classes]
    return np.concatenate([np.repeat(np.arange(len(Split)), each) for each in sizes]).astype(np.int64)


def _form(facts: SiteSummary) -> tuple[object, ...]:
    return facts.task, facts.shape, facts.measured, facts.table is not None


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
        if facts.splits is not None:
            counted = len(Split) * len(facts.splits)
            left.add(site, [DisclosureEntry(PARTS, counted, 8 * counted)])
        if facts.table is not None:
            texts = facts.table.texts
            left.add(site, [DisclosureEntry(COLUMNS, len(texts), len("".join(texts).encode()))])
    return left.entries()


def data_name(source: str) -> str:
    """Return the data set's name in reports: as on one machine if the sites are folders of one data set."""
    return Path(source).name if not Path(source).suffix else Path(source).stem
