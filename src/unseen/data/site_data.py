"""One site's own samples: what lies there, known by the names that the site itself uses.

A site knows neither the other domains nor their classes. `as_data_set` gives its samples the numbers that
the whole federation agreed on; the other domains then exist by name and have no samples here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column, DataSet
from unseen.data.images.cache import decode_images
from unseen.data.images.folders import DEFAULT_IMAGE_SIZE, left_out
from unseen.data.images.scan import scan_site
from unseen.data.sources import DataRequest, load_data
from unseen.errors import UnseenError, unknown_name
from unseen.tasks import TASKS


@dataclass(frozen=True)
class SiteSamples:
    """Samples of one domain in their order on disk; `targets` number the site's own `classes`."""

    site: str
    task: str
    inputs: npt.NDArray[Any]
    targets: npt.NDArray[Any]
    classes: tuple[str, ...]
    fingerprint: str
    notes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()

    def counts(self) -> dict[str, int]:
        """Samples of every class; for regression one entry with all of them."""
        if not TASKS[self.task].has_classes:
            return {"": len(self.targets)}
        found = np.bincount(self.targets, minlength=len(self.classes))
        return dict(zip(self.classes, found.tolist(), strict=True))

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
        )


def load_site(site: str, request: DataRequest) -> SiteSamples:
    """Load a site's folder CLASS/IMAGE; of a named data set or a table, the domain named like the site."""
    path = Path(request.source).expanduser()
    if path.is_dir():
        return _from_folder(site, path, request)
    data = load_data(request)
    rows = data.indices(site)
    if not len(rows):
        raise UnseenError(f"{request.source} has no samples of {site!r}; expected some at the site itself")
    part = replace(data, inputs=data.inputs[rows], targets=data.targets[rows], domain_of=data.domain_of[rows])
    return SiteSamples(
        site=site,
        task=data.task,
        inputs=part.inputs,
        targets=part.targets,
        classes=data.classes,
        fingerprint=_fingerprint(part.inputs.tobytes(), part.targets, data.classes),
        notes=data.notes,
        columns=data.columns,
    )


def _from_folder(site: str, path: Path, request: DataRequest) -> SiteSamples:
    scan = scan_site(path, site=site)
    if not scan.files:
        raise UnseenError(f"{path}: no images found; a site's folder is laid out CLASS/IMAGE, say dog/1.jpg")
    decoded = decode_images(
        path, scan.files, size=request.image_size or DEFAULT_IMAGE_SIZE, progress=request.progress
    )
    notes = [*scan.oddities(), *([decoded.note] if decoded.note else [])]
    if decoded.unreadable:
        notes.append(left_out(path, scan, decoded, allowed=request.skip_unreadable))
    labels = [file.label for file in scan.files if file.name not in decoded.unreadable]
    classes = tuple(sorted(set(labels)))
    numbers = {label: number for number, label in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels], dtype=np.int64)
    return SiteSamples(
        site=site,
        task="classification",
        inputs=decoded.images,
        targets=targets,
        classes=classes,
        fingerprint=_fingerprint(decoded.digest.encode(), targets, classes),
        notes=tuple(notes),
    )


def _fingerprint(content: bytes, targets: npt.NDArray[Any], classes: tuple[str, ...]) -> str:
    """Identify content, so that a site whose data changed in the middle of a run is noticed."""
    digest = hashlib.sha256(repr(classes).encode())
    digest.update(content)
    digest.update(np.ascontiguousarray(targets).tobytes())
    return digest.hexdigest()[:16]
