"""Shared by the WILDS sets: a table of metadata and the samples' files, as officially released.

Koh et al., "WILDS: A Benchmark of in-the-Wild Distribution Shifts", ICML 2021. The domains of the official
test are held out by default, and those of the official (out-of-distribution) validation select the round.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.data.download import Acquisition
from unseen.data.images.cache import decode_images
from unseen.data.images.decode import RGB, ImageDecoder
from unseen.data.images.scan import ImageFile
from unseen.data.sources import DataRequest, require_data_root
from unseen.errors import UnseenError

Row = dict[str, str]


@dataclass(frozen=True)
class Release:
    """The folder of a WILDS set and what its metadata must contain.

    places   folders below the data root; the first is the one that the package `wilds` makes
    table    the metadata file
    columns  the columns that are read
    """

    name: str
    places: tuple[str, ...]
    table: str
    columns: tuple[str, ...]

    @property
    def needs(self) -> str:
        """Name the files that a user has to put below the data root."""
        return f"the WILDS release as {self.places[0]}/ with {self.table} in it"

    def acquisition(self, licence: str) -> Acquisition:
        """Describe how to get the release."""
        dataset = self.places[0].partition("_")[0]
        return Acquisition(
            licence=licence,
            where=f"wilds.stanford.edu; pip install wilds, then in Python: wilds.get_dataset('{dataset}', "
            "root_dir=YOUR_DATA_ROOT, download=True)",
            put=self.needs,
        )

    def find(self, root: Path) -> Path | None:
        """Find the folder of the release below a data root."""
        return next((root / place for place in self.places if (root / place / self.table).is_file()), None)

    def read(self, request: DataRequest) -> tuple[Path, list[Row]]:
        """Read the metadata, one row per sample in the release's order."""
        root = require_data_root(request, needs=self.needs)
        folder = self.find(root)
        if folder is None:
            raise UnseenError(
                f"{self.name}: no file {root / self.places[0] / self.table}; put {self.needs} below {root}"
            )
        return folder, read_table(folder / self.table, self.columns)


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read a CSV file that must have these columns."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnseenError(f"{path}: cannot be read ({error}); get the release again") from error
    missing = [name for name in columns if not rows or rows[0].get(name) is None]
    if missing:
        raise UnseenError(f"{path}: no column {', '.join(missing)}; expected {', '.join(columns)}")
    return rows


@dataclass(frozen=True)
class Sample:
    """One sample: its file, domain, class (empty for regression) or value, and group (empty for none)."""

    file: str
    domain: str
    label: str = ""
    value: float = 0.0
    group: str = ""


def load_samples(
    name: str,
    folder: Path,
    samples: Sequence[Sample],
    request: DataRequest,
    *,
    size: int,
    classes: tuple[str, ...] = (),
    form: ImageDecoder = RGB,
) -> DataSet:
    """Decode the samples' files (once, into the cache) and build one data set."""
    files = [_image_file(folder, sample) for sample in samples]
    decoded = decode_images(
        folder, files, size=request.image_size or size, progress=request.progress, form=form
    )
    notes = [decoded.note] if decoded.note else []
    if decoded.unreadable:
        first, reason = next(iter(decoded.unreadable.items()))
        seen = f"{len(decoded.unreadable)} of {len(files)} files, for example {first} ({reason})"
        if not request.skip_unreadable:
            raise UnseenError(f"{folder}: cannot read {seen}; get them again, or use --skip-unreadable")
        notes.append(f"left out: {seen}")
        samples = [sample for sample in samples if sample.file not in decoded.unreadable]
    domain_of, domains = _number_names([sample.domain for sample in samples])
    group_of, groups = _number_names([sample.group for sample in samples])
    if classes:
        number = {label: place for place, label in enumerate(classes)}
        targets: npt.NDArray[np.generic] = np.array([number[sample.label] for sample in samples], np.int64)
    else:
        targets = np.array([sample.value for sample in samples], np.float32)
    digest = hashlib.sha256(repr((decoded.digest, decoded.images.shape, domains, groups, classes)).encode())
    for array in (targets, domain_of, group_of):
        digest.update(array.tobytes())
    return DataSet(
        name=name,
        task="classification" if classes else "regression",
        inputs=decoded.images,
        targets=targets,
        domain_of=domain_of,
        domains=domains,
        classes=classes,
        notes=tuple(notes),
        fingerprint=digest.hexdigest()[:16],
        group_of=group_of,
        groups=groups,
    )


def _image_file(folder: Path, sample: Sample) -> ImageFile:
    try:
        found = (folder / sample.file).stat()
    except OSError:  # kept, so that decoding reports it
        return ImageFile(sample.file, sample.domain, sample.label, -1, -1)
    return ImageFile(sample.file, sample.domain, sample.label, found.st_size, found.st_mtime_ns)


def _number_names(names: Sequence[str]) -> tuple[Indices, tuple[str, ...]]:
    """Number names in sorted order; the empty one is -1."""
    known = tuple(sorted(set(names) - {""}))
    number = {name: place for place, name in enumerate(known)} | {"": -1}
    return np.array([number[name] for name in names], np.int64), known
