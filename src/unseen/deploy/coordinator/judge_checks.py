"""Checks of what sites answer to a job that only evaluates, before anything uses it."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.site_summary import MOST_SAMPLES
from unseen.errors import UnseenError
from unseen.judging.paired_tests import Rankings, ranked_classes
from unseen.judging.site_findings import Groups, JudgeTerms, SiteFindings
from unseen.printable import printable

Counts = dict[str, int]
"""A site's samples per class; of values, all of them under an empty name."""
_ROOM = 1e-9


def read_counts(values: object, terms: JudgeTerms) -> Counts:
    """Read how many samples a site says to have; refuse what no site has."""
    known = set(terms.classes) or {""}
    if (
        not isinstance(values, dict)
        or not all(type(count) is int and 0 <= count <= MOST_SAMPLES for count in values.values())
        or not 0 < sum(values.values()) <= MOST_SAMPLES
    ):
        _refuse("unusable numbers of samples")
    for name in values:
        if name not in known:
            raise UnseenError(f"has a class {printable(name, longest=80)!r}, which the model does not know")
    return dict(values)


def read_findings(site: str, answer: SiteMessage, terms: JudgeTerms, counts: Counts) -> SiteFindings:
    """Read a site's findings and compare them with what it said to have, and with one another."""
    found = SiteFindings.read(site, terms, answer.header, answer.arrays)
    expected = [counts.get(name, 0) for name in terms.classes] or [sum(counts.values())]
    if list(found.counts) != expected:
        _refuse("metrics of other samples than it has")
    total = sum(expected)
    for sums in found.sums:
        if reason := sums.explain_impossible(total, expected if terms.classes else None):
            _refuse(reason)
        _require_finite(sums.sums)
    if found.rankings is not None:
        _check_rankings(found.rankings, [expected[number] for number in ranked_classes(terms.outputs)], total)
    _check_paired(found, total, terms)
    for groups in found.groups:
        _check_groups(groups, found, total)
    return found


def _require_finite(sums: dict[str, npt.NDArray[Any]]) -> None:
    for name, array in sums.items():
        if not np.isfinite(array).all():
            _refuse(f"sums {name!r} that are not finite")
    for name in ("squares_after", "absolute"):
        if name in sums and (sums[name] < 0).any():
            _refuse(f"sums {name!r} below zero")


def _check_rankings(found: Rankings, positives: list[int], total: int) -> None:
    """Check areas and fractions, their covariances, and the numbers that they rest on."""
    if found.counts.tolist() != [[own, total - own] for own in positives]:
        _refuse("areas over other samples than it has")
    for table in (found.areas, found.precision, found.sensitivity):
        _check_fractions(table)
        if (np.isnan(table) != np.isnan(found.areas)).any():
            _refuse("rankings that are only half known")
    _check_covariance(found.areas, found.covariance)


def _check_fractions(table: npt.NDArray[Any]) -> None:
    known = table[~np.isnan(table)]
    if ((known < -_ROOM) | (known > 1 + _ROOM)).any():
        _refuse("a fraction outside of 0 to 1")


def _check_covariance(areas: npt.NDArray[Any], covariance: npt.NDArray[Any]) -> None:
    """Check that every area has a covariance of its models, and no variance is beyond that of a coin."""
    for row, own in zip(areas, covariance, strict=True):
        if np.isnan(row).any() != np.isnan(row).all() or (np.isnan(own) != np.isnan(row).any()).any():
            _refuse("an area without its variance")
        if np.isnan(row).any():
            continue
        if not np.isfinite(own).all():
            _refuse("a variance that is not finite")
        if (np.abs(own - own.T) > _ROOM).any() or (own.diagonal() < 0).any() or (np.abs(own) > 1).any():
            _refuse("variances that no areas have")
        if (np.linalg.eigvalsh(own) < -_ROOM).any():
            _refuse("variances that no areas have")


def _check_paired(found: SiteFindings, total: int, terms: JudgeTerms) -> None:
    """Check the comparison of two models; of classes it follows from their accuracies."""
    first, second = found.paired.tolist()
    if not np.isfinite(found.paired).all() or second < 0:
        _refuse("a comparison of the models that cannot be")
    if not terms.classes:
        return
    right = [int(sums.plain.confusion.diagonal().sum()) for sums in found.sums]  # type: ignore[attr-defined]
    change = right[-1] - right[0]
    if not (first.is_integer() and second.is_integer() and first >= 0 and first + second <= total):
        _refuse("a comparison of the models that cannot be")
    if len(right) == 2 and second - first != change:
        _refuse("a comparison of the models that contradicts their accuracies")


def _check_groups(groups: Groups, found: SiteFindings, total: int) -> None:
    """Check that groups are large enough, have no more samples than the site, and sums that can be."""
    counts = groups.counts
    if (counts < found.min_group).any() or int(counts.sum()) + groups.hidden != total:
        _refuse("groups of other sizes than it may count")
    if not np.isfinite(groups.sums).all() or (groups.sums < 0).any() or (groups.smaller < 0).any():
        _refuse("sums of groups that cannot be")
    if found.rankings is None:
        return
    right = groups.sums[:, :, 0]
    if (right > counts[:, None]).any() or (right != np.round(right)).any() or groups.sums[:, :, 1:].any():
        _refuse("right answers of groups that cannot be")
    _check_fractions(groups.areas)
    _check_covariance(groups.areas, groups.covariance)


def _refuse(what: str) -> NoReturn:
    raise UnseenError(f"sent {what.removeprefix('sent ')}")
