"""Validate a data set before training: its contents, unreadable files, and what may distort a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from unseen.data.dataset import DataSet
from unseen.data.formats import find_requested_format
from unseen.data.sources import (
    SOURCES,
    DataRequest,
    changed_data_settings,
    load_data,
    load_site,
    released_split,
    require_fitting_groups,
)

_UNBALANCED = 20
"""Above this ratio between the largest and the smallest, users are warned."""

Counts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class DataCheck:
    """Findings of a validation.

    counts      samples per domain and class; for regression one column, "rows"
    problem     why training would refuse this data; empty when it would not
    unreadable  file -> reason
    unusual     file -> what is converted on reading (grey, CMYK, 16-bit, transparent, rotated)
    warnings    what may distort a result; training continues anyway
    notes       what the loader leaves out or fills in
    hold_out    domains that are held out unless the user names others: the release's own test
    validate_on domains that select the round then
    groups      groups across domains whose worst is reported
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
        """Return everything as plain values, for JSON."""
        return {**asdict(self), "ok": self.ok}


def check_data(request: DataRequest) -> DataCheck:
    """Check files as thoroughly as their format can; load a named set, or any other, and count it."""
    found = None if request.source in SOURCES else find_requested_format(request)
    if found:
        require_fitting_groups(found, request)
        changed_data_settings(request)
    checked = found.check(request) if found else None
    return check_loaded(load_data(request), request.source) if checked is None else checked


def check_loaded(data: DataSet, source: str = "") -> DataCheck:
    """Count the samples of a data set in memory and look for what may distort a result.

    source  the name of a data set, for the domains that its release holds out
    """
    counts = data.class_counts() or {domain: {"rows": len(data.indices(domain))} for domain in data.domains}
    hold_out, validate_on = released_split(source)
    return DataCheck(
        name=data.name,
        total=len(data),
        counts=counts,
        problem="" if len(data.domains) > 1 else _one_domain(data),
        unreadable={},
        unusual={},
        warnings=(*balance_warnings(counts), *_warn_of_copies(data)),
        notes=data.notes,
        hold_out=hold_out,
        validate_on=validate_on,
        groups=data.groups,
    )


def _warn_of_copies(data: DataSet) -> list[str]:
    """Warn about images that are in several domains, or that a split may separate."""
    if not data.is_image or data.is_measured:
        return []
    from unseen.data.copies import copy_warnings, find_copies, make_thumbnails

    domains = [data.domains[number] for number in data.domain_of.tolist()]
    return copy_warnings(
        find_copies(make_thumbnails(data.inputs)),
        names=[f"sample {row} ({domain})" for row, domain in enumerate(domains)],
        domains=domains,
        groups=None if data.split_group_of is None else data.split_group_of.tolist(),
        option="groups (`from_arrays(groups=...)`, --group-pattern)",
    )


def check_site(site: str, request: DataRequest) -> DataCheck:
    """Check the data of a site: its own files, or the domain of its name in a named set."""
    found = find_requested_format(request)
    checked = found.check_site(site, request) if found else None
    if checked is not None:
        return checked
    samples = load_site(site, request)
    counts = {site: samples.counts() if samples.classes else {"rows": len(samples.targets)}}
    return DataCheck(
        name=request.path.name,
        total=len(samples.targets),
        counts=counts,
        problem="",
        unreadable={},
        unusual={},
        warnings=tuple(balance_warnings(counts)),
        notes=samples.notes,
    )


def balance_warnings(counts: Counts) -> list[str]:
    """Warn about classes that few domains have and about unbalanced counts."""
    found = []
    sizes = {domain: sum(row.values()) for domain, row in counts.items()}
    labels = list(next(iter(counts.values()), {}))
    for label in labels:
        having = [domain for domain, row in counts.items() if row[label]]
        if len(having) == 1 and len(counts) > 1:
            found.append(f"class {label} is in domain {having[0]} only: it cannot be learned across domains")
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


def _one_domain(data: DataSet) -> str:
    return f"{data.name}: found one domain only ({', '.join(data.domains)}), expected at least two"
