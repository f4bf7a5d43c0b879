"""Listings of images with their domains and targets, whatever the format; loading and checking them.

A format says which images there are and where they lie (`ImageListing`). Everything else is here, once:
decoding into the cache, unreadable images, groups, the samples of one site, and the checks before training.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from unseen.data.copies import THUMB, copy_warnings, find_copies
from unseen.data.dataset import DataSet, Indices
from unseen.data.formats import DataFormat
from unseen.data.grouping import group_keys, note_groups
from unseen.data.images.cache import DecodedImages, decode_source
from unseen.data.images.image_sources import ImageSource, Look
from unseen.data.site_data import SiteSamples, fingerprint_site
from unseen.data.sources import DataRequest, Progress
from unseen.data.validate import DataCheck, balance_warnings
from unseen.errors import UnseenError, escape_bytes
from unseen.tasks import TASKS

DEFAULT_IMAGE_SIZE = 64
SAMPLED_IMAGES = 25
"""Images that are looked at to find their typical size."""
Groups = Sequence[str | None]


@dataclass(frozen=True)
class ImageListing:
    """Images with their domains and targets, none of them decoded.

    name      of the data set
    domains   of each image
    targets   of each image: positions in `classes`, or quantities
    groups    the name of each image's group, None for a group of one; None where the data names no groups
    option    how the groups were named, for messages
    notes     what a user should know about the listing
    advice    what a check warns of
    """

    name: str
    source: ImageSource
    domains: Sequence[str]
    targets: npt.NDArray[Any]
    classes: tuple[str, ...] = ()
    task: str = "classification"
    groups: Groups | None = None
    option: str = "--group-column"
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    def domain_names(self) -> tuple[str, ...]:
        """List the domains, sorted."""
        return tuple(sorted(set(self.domains)))

    def counts(self) -> dict[str, dict[str, int]]:
        """Count images per domain and class; without classes one column, "rows"."""
        if not TASKS[self.task].has_classes:
            rows = Counter(self.domains)
            return {domain: {"rows": rows[domain]} for domain in self.domain_names()}
        found = Counter(zip(self.domains, self.targets.tolist(), strict=True))
        return {
            domain: {label: found[domain, number] for number, label in enumerate(self.classes)}
            for domain in self.domain_names()
        }

    def rows(self, decoded: DecodedImages) -> list[int]:
        """List the positions of the images that could be decoded."""
        if not decoded.unreadable:
            return list(range(len(self)))
        return [row for row, name in enumerate(self.source.names) if name not in decoded.unreadable]

    def keys(self, rows: Sequence[int]) -> tuple[Indices | None, list[str]]:
        """Compute the groups' keys of some images, with a note on them; None where there are no groups."""
        if self.groups is None:
            return None, []
        names = [self.groups[row] for row in rows]
        return group_keys(names, [self.domains[row] for row in rows]), note_groups(names, self.option)


def number_labels(labels: Sequence[str]) -> tuple[Indices, tuple[str, ...]]:
    """Number texts in sorted order."""
    names = tuple(sorted(set(labels)))
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[label] for label in labels], dtype=np.int64), names


def load_listing(listing: ImageListing, request: DataRequest) -> DataSet:
    """Decode the images of a listing, once, into the cache."""
    decoded, notes = _decode(listing, request)
    rows = listing.rows(decoded)
    domain_of, domains = number_labels([listing.domains[row] for row in rows])
    keys, group_notes = listing.keys(rows)
    targets = listing.targets[rows]
    return DataSet(
        name=listing.name,
        task=listing.task,
        inputs=decoded.images,
        targets=targets,
        domain_of=domain_of,
        domains=domains,
        classes=listing.classes,
        notes=(*notes, *group_notes),
        split_group_of=keys,
        fingerprint=_fingerprint(decoded, targets, domain_of, listing.task, (domains, listing.classes)),
    )


def load_listed_site(listing: ImageListing, site: str, request: DataRequest) -> SiteSamples:
    """Decode the images of a site, whose listing has no others."""
    decoded, notes = _decode(listing, request)
    rows = listing.rows(decoded)
    keys, group_notes = listing.keys(rows)
    targets, classes = listing.targets[rows], listing.classes
    if TASKS[listing.task].has_classes:
        targets, classes = number_labels([classes[number] for number in targets])
    return SiteSamples(
        site=site,
        task=listing.task,
        inputs=decoded.images,
        targets=targets,
        classes=classes,
        fingerprint=fingerprint_site(decoded.digest.encode(), targets, classes),
        notes=(*notes, *group_notes),
        split_group_of=keys,
    )


def _decode(listing: ImageListing, request: DataRequest) -> tuple[DecodedImages, list[str]]:
    size = request.image_size or DEFAULT_IMAGE_SIZE
    decoded = decode_source(listing.source, size=size, progress=request.progress)
    notes = [*listing.notes, *([decoded.note] if decoded.note else [])]
    if decoded.unreadable:
        notes.append(note_unreadable(listing, decoded, allowed=request.skip_unreadable))
    return decoded, notes


def note_unreadable(listing: ImageListing, decoded: DecodedImages, *, allowed: bool) -> str:
    """Note the unreadable images that are left out, or raise an error."""
    path = listing.source.place
    first, reason = next(iter(decoded.unreadable.items()))
    others = len(decoded.unreadable) - 1
    seen = f"unreadable image {escape_bytes(first)} ({reason})" + (f" and {others} more" if others else "")
    if not allowed:
        raise UnseenError(
            f"{path}: {seen}; `unseen data check {path}` lists them all, --skip-unreadable leaves them out"
        )
    rows = listing.rows(decoded)
    domains = {listing.domains[row] for row in rows}
    lost = [domain for domain in listing.domain_names() if domain not in domains]
    if TASKS[listing.task].has_classes:
        kept = set(listing.targets[rows].tolist())
        lost += [label for number, label in enumerate(listing.classes) if number not in kept]
    if lost:
        raise UnseenError(
            f"{path}: no readable image is left of {', '.join(lost)} ({seen}); replace these files"
        )
    return f"left out: {seen}"


def _fingerprint(
    decoded: DecodedImages,
    targets: npt.NDArray[Any],
    domain_of: Indices,
    task: str,
    names: tuple[tuple[str, ...], tuple[str, ...]],
) -> str:
    """Identify the content by the stored hash of the pixels, so that a second start reads no image."""
    about = repr((task, names, decoded.images.shape, decoded.digest))
    digest = hashlib.sha256(about.encode())
    digest.update(targets.tobytes())
    digest.update(domain_of.tobytes())
    return digest.hexdigest()[:16]


def check_listing(listing: ImageListing, *, problem: str, progress: Progress) -> DataCheck:
    """Decode every image of a listing to its end and report everything unusual."""
    unreadable, unusual = dict[str, str](), dict[str, str]()
    seen = list[tuple[int, Look]]()
    names = [escape_bytes(name) for name in listing.source.names]
    for row, (name, look) in enumerate(zip(names, listing.source.inspect(THUMB), strict=True)):
        if look.reason:
            unreadable[name] = look.reason
        else:
            seen.append((row, look))
        if look.unusual:
            unusual[name] = look.unusual
        if (row + 1) % 100 == 0 or row + 1 == len(names):
            progress("checking images", row + 1, len(names))
    counts = {
        escape_bytes(domain): {escape_bytes(label): count for label, count in found.items()}
        for domain, found in listing.counts().items()
    }
    return DataCheck(
        name=listing.name,
        total=len(names),
        counts=counts,
        problem=problem,
        unreadable=unreadable,
        unusual=unusual,
        warnings=(
            *balance_warnings(counts),
            *listing.advice,
            *_group_warnings(listing),
            *_copy_warnings(listing, names, seen),
        ),
        notes=listing.notes,
    )


def _group_warnings(listing: ImageListing) -> list[str]:
    """Warn of groups, such as patients, that are in several domains; their names are not shown."""
    if listing.groups is None:
        return []
    places: dict[str, set[str]] = {}
    for group, domain in zip(listing.groups, listing.domains, strict=True):
        if group is not None:
            places.setdefault(group, set()).add(domain)
    shared = [domains for domains in places.values() if len(domains) > 1]
    if not shared:
        return []
    example = " and ".join(escape_bytes(name) for name in sorted(shared[0])[:2])
    return [
        f"{len(shared)} groups ({listing.option}) are in more than one domain, for example in {example}: "
        "the held-out domain leaks"
    ]


def _copy_warnings(listing: ImageListing, names: list[str], seen: list[tuple[int, Look]]) -> list[str]:
    """Warn about equal files, and about images that show the same."""
    if not seen:
        return []
    latest: dict[str, int] = {}
    equal = list[tuple[int, int]]()
    for position, (_, look) in enumerate(seen):
        if look.digest and look.digest in latest:
            equal.append((latest[look.digest], position))
        latest[look.digest] = position
    thumbs = np.stack([look.thumbnail for _, look in seen if look.thumbnail is not None])
    pairs = np.concatenate(
        [np.array(equal, dtype=np.int64).reshape(-1, 2), find_copies(thumbs.astype(np.float32))]
    )
    rows = [row for row, _ in seen]
    keys, _ = listing.keys(rows)
    return copy_warnings(
        pairs,
        names=[names[row] for row in rows],
        domains=[listing.domains[row] for row in rows],
        groups=None if keys is None else keys.tolist(),
        option=listing.option,
    )


def typical_side(listing: ImageListing, without: Collection[str] = ()) -> int:
    """Return the median of the shorter sides of some images; 0 if none can be read.

    without  domains whose images are not looked at
    """
    rows = [row for row, domain in enumerate(listing.domains) if domain not in without]
    sides = listing.source.sides(rows[:: max(len(rows) // SAMPLED_IMAGES, 1)])
    return int(median(sides)) if sides else 0


class ListedImageFormat(DataFormat):
    """Base class of formats whose images are listed first and then decoded as a stream."""

    contents: ClassVar[Literal["images", "table", "arrays"]] = "arrays"

    @abstractmethod
    def list_images(self, request: DataRequest, site: str | None = None) -> ImageListing:
        """List the images.

        site  list only those of this site: its own domain, or all where no domain is named
        """

    def load(self, request: DataRequest) -> DataSet:
        """Decode the images, once, into the cache."""
        return load_listing(self.list_images(request), request)

    def load_site(self, site: str, request: DataRequest) -> SiteSamples:
        """Decode the images of one site."""
        return load_listed_site(self.list_images(request, site), site, request)

    def photo_side(self, request: DataRequest, without: Collection[str] = ()) -> int:
        """Find the median side of some of the images."""
        return typical_side(self.list_images(request), without)

    def check(self, request: DataRequest) -> DataCheck:
        """Decode every image to its end."""
        listing = self.list_images(request)
        return check_listing(listing, problem=problem_of(listing), progress=request.progress)

    def check_site(self, site: str, request: DataRequest) -> DataCheck:
        """Decode every image of a site to its end."""
        return check_listing(self.list_images(request, site), problem="", progress=request.progress)


def problem_of(listing: ImageListing) -> str:
    """Explain in one line why images cannot be trained on; empty if they can."""
    domains = listing.domain_names()
    if len(domains) < 2:
        return f"{listing.name}: found one domain only ({', '.join(domains)}), expected at least two"
    if TASKS[listing.task].has_classes and len(listing.classes) < 2:
        return f"{listing.name}: found one class only ({', '.join(listing.classes)}), expected at least two"
    return ""
