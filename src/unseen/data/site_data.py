"""Samples of one site of a federation, with the site's own class and column names.

A site knows neither the other domains nor their classes. `as_data_set` numbers its samples as the whole
federation does; the other domains then exist by name and have no samples here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column, DataSet, Indices
from unseen.errors import UnseenError, unknown_name
from unseen.tasks import TASKS


@dataclass(frozen=True)
class SiteSamples:
    """Samples of one domain in their order on disk; `targets` number the site's own `classes`.

    unused          columns of a table whose values cannot be used here
    numeric_target  whether a table's classes are numbers, which are sorted as such
    split_group_of  keys of the samples' groups, as in `DataSet`
    """

    site: str
    task: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    classes: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    unused: tuple[str, ...] = ()
    numeric_target: bool = False
    split_group_of: Indices | None = None

    def counts(self) -> dict[str, int]:
        """Count samples per class; for regression one entry with all of them."""
        if not TASKS[self.task].has_classes:
            return {"": len(self.targets)}
        found = np.bincount(self.targets, minlength=len(self.classes))
        return dict(zip(self.classes, found.tolist(), strict=True))

    def without_small_classes(self, least: int) -> SiteSamples:
        """Leave out classes with fewer than `least` samples, name and all; without classes, all or nothing.

        They are left out before anything is counted, so a census, an update and an evaluation agree.
        """
        small = [name for name, count in self.counts().items() if 0 < count < least]
        if not small:
            return self
        classes = tuple(name for name in self.classes if name not in small)
        kept = np.isin(self.targets, [self.classes.index(name) for name in classes])
        if not classes or not kept.any():
            raise UnseenError(f"no class of site {self.site!r} has {least} samples, as its policy demands")
        numbers = {self.classes.index(name): number for number, name in enumerate(classes)}
        targets = np.array([numbers[int(target)] for target in self.targets[kept]], dtype=self.targets.dtype)
        return replace(
            self,
            inputs=self.inputs[kept],
            targets=targets,
            classes=classes,
            split_group_of=None if self.split_group_of is None else self.split_group_of[kept],
            fingerprint=fingerprint_site(self.fingerprint.encode(), targets, classes),
            notes=(*self.notes, f"left out, with fewer than {least} samples: {', '.join(small)}"),
        )

    def with_groups_identified(self) -> SiteSamples:
        """Make the groups part of the fingerprint, for a split that depends on them."""
        if self.split_group_of is None:
            return self
        whole = fingerprint_site(self.fingerprint.encode(), self.split_group_of, self.classes)
        return replace(self, fingerprint=whole)

    def as_data_set(self, *, name: str, domains: tuple[str, ...], classes: tuple[str, ...]) -> DataSet:
        """Number targets and domain as the federation does."""
        targets = self.targets
        if TASKS[self.task].has_classes:
            for label in self.classes:
                if label not in classes:
                    raise unknown_name(f"class (of site {self.site!r})", label, classes)
            numbers = np.array([classes.index(label) for label in self.classes], dtype=np.int64)
            targets = numbers[self.targets]
        return DataSet(
            name=name,
            task=self.task,
            inputs=self.inputs,
            targets=targets,
            domain_of=np.full(len(targets), domains.index(self.site), dtype=np.int64),
            domains=domains,
            classes=classes,
            notes=self.notes,
            fingerprint=self.fingerprint,
            columns=self.columns,
            split_group_of=self.split_group_of,
        )


def select_site(data: DataSet, site: str, *, source: str) -> SiteSamples:
    """Extract the domain that is named like the site from a whole data set."""
    rows = data.indices(site)
    if not len(rows):
        raise UnseenError(f"{source} has no samples of {site!r}; expected some at the site itself")
    inputs, targets = data.inputs[rows], data.targets[rows]
    return SiteSamples(
        site=site,
        task=data.task,
        inputs=inputs,
        targets=targets,
        classes=data.classes,
        fingerprint=fingerprint_site(inputs.tobytes(), targets, data.classes),
        notes=data.notes,
        columns=data.columns,
        split_group_of=None if data.split_group_of is None else data.split_group_of[rows],
    )


def fingerprint_site(content: bytes, targets: npt.NDArray[Any], classes: tuple[str, ...]) -> str:
    """Identify the content, so that a change of a site's data during a run is detected."""
    digest = hashlib.sha256(repr(classes).encode())
    digest.update(content)
    digest.update(np.ascontiguousarray(targets).tobytes())
    return digest.hexdigest()[:16]
