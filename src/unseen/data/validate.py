"""Look a data set over before training: what is there, what cannot be read, what may surprise."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unseen.data.dataset import DataSet
from unseen.data.images.decode import UnreadableImageError, describe_image, map_in_threads
from unseen.data.images.scan import FolderScan, scan_folder, scan_site
from unseen.data.site_data import load_site
from unseen.data.sources import (
    SOURCES,
    DataRequest,
    Progress,
    load_data,
    no_progress,
    released_split,
)

_UNBALANCED = 20
"""Above this ratio between the largest and the smallest, users are warned."""

Counts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class DataCheck:
    """What was found.

    counts      samples per domain and class; for regression one column, "rows"
    problem     why training would refuse this data; empty when it would not
    unreadable  file -> reason
    unusual     file -> what is converted on reading (grey, CMYK, 16-bit, transparent, rotated)
    warnings    what may spoil a result; training goes on all the same
    notes       what the loader leaves out or fills in
    hold_out    domains that are held out unless the user names others: the release's own test
    validate_on domains that choose the round then
    groups      groups across domains whose worst is told
    """

    name: str
    total: int
    counts: Counts
    problem: str
    unreadable: Mapping[str, str]
    unusual: Mapping[str, str]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    hold_out: tuple[str, ...] = ()
    validate_on: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether training would start without leaving anything out."""
        return not self.problem and not self.unreadable

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        return {**asdict(self), "ok": self.ok}


def check_data(request: DataRequest) -> DataCheck:
    """Check a folder file by file; load anything else (a named set, a table) and count it."""
    path = Path(request.source).expanduser()
    if path.is_dir() and request.source not in SOURCES:
        return check_folder(path, progress=request.progress)
    data = load_data(request)
    counts = data.class_counts() or {domain: {"rows": len(data.indices(domain))} for domain in data.domains}
    hold_out, validate_on = released_split(request.source)
    return DataCheck(
        name=data.name,
        total=len(data),
        counts=counts,
        problem="" if len(data.domains) > 1 else _one_domain(data),
        unreadable={},
        unusual={},
        warnings=tuple(_balance_warnings(counts)),
        notes=data.notes,
        hold_out=hold_out,
        validate_on=validate_on,
        groups=data.groups,
    )


def check_site(site: str, request: DataRequest) -> DataCheck:
    """Check what a site would bring: its folder CLASS/IMAGE, or its own part of a named set or a table."""
    path = Path(request.source).expanduser()
    if path.is_dir():
        scan = scan_site(path, site=site)
        return _check_scan(scan, problem=scan.problem_of_site(), progress=request.progress)
    samples = load_site(site, request)
    counts = {site: samples.counts() if samples.classes else {"rows": len(samples.targets)}}
    return DataCheck(
        name=path.name,
        total=len(samples.targets),
        counts=counts,
        problem="",
        unreadable={},
        unusual={},
        warnings=tuple(_balance_warnings(counts)),
        notes=samples.notes,
    )


def check_folder(path: Path, *, progress: Progress = no_progress) -> DataCheck:
    """Decode every image of `domain/class/image` to its end and report all that is odd."""
    scan = scan_folder(path)
    return _check_scan(scan, problem=scan.problem() or _one_class(scan), progress=progress)


def _check_scan(scan: FolderScan, *, problem: str | None, progress: Progress) -> DataCheck:
    path = scan.folder
    unreadable: dict[str, str] = {}
    unusual: dict[str, str] = {}
    copies: dict[str, list[str]] = defaultdict(list)
    looks = map_in_threads(lambda file: _look(path / file.name), scan.files)
    for done, (file, look) in enumerate(zip(scan.files, looks, strict=True), start=1):
        if look.reason:
            unreadable[file.name] = look.reason
        else:
            copies[look.digest].append(file.name)
        if look.unusual:
            unusual[file.name] = look.unusual
        if done % 100 == 0 or done == len(scan.files):
            progress("checking images", done, len(scan.files))
    counts = scan.counts()
    return DataCheck(
        name=path.resolve().name,
        total=len(scan.files),
        counts=counts,
        problem=problem or "",
        unreadable=unreadable,
        unusual=unusual,
        warnings=(*_balance_warnings(counts), *_name_warnings(scan), *_copy_warnings(copies)),
        notes=scan.oddities(),
    )


@dataclass(frozen=True)
class _Look:
    digest: str = ""
    reason: str = ""
    unusual: str = ""


def _look(path: Path) -> _Look:
    try:
        unusual = describe_image(path)
        return _Look(hashlib.sha256(path.read_bytes()).hexdigest(), unusual=unusual)
    except UnreadableImageError as error:
        return _Look(reason=str(error))
    except OSError as error:
        return _Look(reason=error.strerror or str(error))


def _balance_warnings(counts: Counts) -> list[str]:
    """Warn of classes that few domains have and of numbers far apart."""
    found = []
    sizes = {domain: sum(row.values()) for domain, row in counts.items()}
    labels = list(next(iter(counts.values()), {}))
    for label in labels:
        having = [domain for domain, row in counts.items() if row[label]]
        if len(having) == 1 and len(counts) > 1:
            found.append(f"class {label} is in domain {having[0]} only: it cannot be learnt across domains")
    found.extend(_ratio_warning("domains", sizes))
    if len(labels) > 1:
        found.extend(
            _ratio_warning("classes", {label: sum(row[label] for row in counts.values()) for label in labels})
        )
    return found


def _ratio_warning(what: str, sizes: Mapping[str, int]) -> list[str]:
    """Warn when the largest has many times as many samples as the smallest."""
    if len(sizes) < 2:
        return []
    least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[most] <= _UNBALANCED * sizes[least]:
        return []
    return [f"{what} are very unbalanced: {most} has {sizes[most]} samples, {least} {sizes[least]}"]


def _name_warnings(scan: FolderScan) -> list[str]:
    """Warn of class names that are probably meant to be one."""
    same: dict[str, list[str]] = defaultdict(list)
    for label in scan.classes:
        same[label.strip().casefold()].append(label)
    return [
        f"classes {' and '.join(names)} differ in upper and lower case only"
        for names in same.values()
        if names[1:]
    ]


def _copy_warnings(copies: Mapping[str, list[str]]) -> list[str]:
    """Warn of files that lie in several domains, which lets the held-out domain leak."""
    leaks = [names for names in copies.values() if len({name.split("/")[0] for name in names}) > 1]
    if not leaks:
        return []
    example = " and ".join(leaks[0][:2])
    return [
        f"{len(leaks)} images lie in more than one domain, for example {example}: the held-out domain leaks"
    ]


def _one_domain(data: DataSet) -> str:
    return f"{data.name}: found one domain only ({', '.join(data.domains)}), expected at least two"


def _one_class(scan: FolderScan) -> str:
    if len(scan.classes) > 1:
        return ""
    return f"{scan.folder}: found one class only ({scan.classes[0]}), expected at least two folders a domain"
