"""What a site finds out about one or two models, as the numbers that may leave it.

Nothing here is per sample: confusion matrices and histograms, sums of errors, areas under ROC curves with
their covariances, and for groups of samples right answers and areas, where a group is large enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from unseen.calibration import Measurement
from unseen.calibration.histograms import Counts, Floats
from unseen.calibration.reliability import log_softmax
from unseen.data.site_data import SiteSamples
from unseen.data.sources import Progress, no_progress
from unseen.errors import UnseenError, UsageError
from unseen.judging.judged_model import JudgedModel, number_targets
from unseen.judging.paired_tests import Rankings, find_rankings, ranked_classes
from unseen.printable import is_printable, printable
from unseen.tasks import TASKS
from unseen.tasks.accumulators import Arrays
from unseen.tasks.detail_accumulators import DetailAccumulator

LEFT = "metrics of judged models: counts, histograms of probabilities, sums of errors, variances"
"""The kind of value that leaves a site, for its policy and its ledger."""
MIN_GROUP = 5
"""The smallest group that is counted, where nothing else is said."""
MOST_GROUPS, LONGEST_GROUP = 1000, 100
MOST_LEVELS = 20
"""Different whole numbers in a column of numbers that still are groups."""


@dataclass(frozen=True)
class JudgeTerms:
    """What is asked of every site: it follows from the models, wherever they are opened.

    measurements  one per model
    scale         mean and std by which values are standardized
    columns       of a table, whose texts are groups of samples
    """

    task: str
    classes: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    scale: tuple[float, float]
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, models: Sequence[JudgedModel], columns: Sequence[str] = ()) -> JudgeTerms:
        """Take the terms from the models."""
        first = models[0]
        measurements = tuple(Measurement("metrics", model.scaling) for model in models)
        return cls(first.task, first.classes, measurements, first.target_scale, tuple(columns))

    @property
    def outputs(self) -> int:
        """The number of values that a model predicts per sample."""
        return max(len(self.classes), 1)

    def empty_sums(self) -> tuple[DetailAccumulator, ...]:
        """Return the sums over no samples, per model."""
        task = TASKS[self.task]
        return tuple(
            DetailAccumulator(
                task.make_accumulator(self.outputs, target_scale=self.scale[1]), each, self.outputs
            )
            for each in self.measurements
        )


class Groups(NamedTuple):
    """The groups of a column that are large enough, per model.

    sums    groups x models x 3: right answers; of values absolute errors, squared errors and their squares
    hidden  samples in groups that are too small, and without a value
    """

    column: str
    names: tuple[str, ...]
    counts: Counts
    sums: Floats
    areas: Floats
    covariance: Floats
    smaller: Counts
    hidden: int


@dataclass(frozen=True)
class SiteFindings:
    """The numbers of one site.

    min_group  the smallest group that the site counts
    sums       per model
    rankings   of classes; None for values
    paired     of two models, where they differ: of classes the samples that only the first, and only the
               second, has right; of values the sum of the differences of absolute errors, and their squares
    """

    site: str
    min_group: int
    counts: tuple[int, ...]
    sums: tuple[DetailAccumulator, ...]
    rankings: Rankings | None
    paired: Floats
    groups: tuple[Groups, ...]

    @property
    def samples(self) -> int:
        """The number of judged samples."""
        return self.sums[0].count

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything but names, as arrays."""
        found: dict[str, npt.NDArray[Any]] = {
            f"model {place}/{name}": array
            for place, sums in enumerate(self.sums)
            for name, array in sums.to_arrays().items()
        }
        found["counts"] = np.array(self.counts, dtype=np.int64)
        found["paired"] = self.paired
        if self.rankings is not None:
            found |= {f"rankings/{name}": array for name, array in self.rankings._asdict().items()}
        for place, groups in enumerate(self.groups):
            for name in _GROUP_ARRAYS:
                found[f"group {place}/{name}"] = getattr(groups, name)
        return found

    def to_header(self) -> dict[str, Any]:
        """Return names and single counts, as JSON values."""
        return {
            "min_group": self.min_group,
            "groups": [
                {"column": each.column, "names": list(each.names), "hidden": each.hidden}
                for each in self.groups
            ],
        }

    @classmethod
    def read(cls, site: str, terms: JudgeTerms, header: Mapping[str, Any], arrays: Arrays) -> SiteFindings:
        """Read what another site sent; anything of another form is refused, whatever it is."""
        models, unread = len(terms.measurements), dict(arrays)

        def take(name: str, shape: tuple[int, ...], kind: type) -> npt.NDArray[Any]:
            array = unread.pop(name, None)
            if array is None or array.shape != shape or array.dtype != kind:
                found = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
                raise UnseenError(f"sent {name!r} as {found}, expected {np.dtype(kind)} of shape {shape}")
            return np.array(array)

        sums = []
        for place, empty in enumerate(terms.empty_sums()):
            prefix = f"model {place}/"
            own = {name: unread.pop(name) for name in list(unread) if name.startswith(prefix)}
            sums.append(empty.from_arrays({name.removeprefix(prefix): each for name, each in own.items()}))
            if not sums[-1].sums:
                raise UnseenError("sent no sums that metrics follow from")
        rankings, rows = None, len(ranked_classes(terms.outputs)) + 1
        if terms.classes:
            rankings = Rankings(
                take("rankings/areas", (rows, models), np.float64),
                take("rankings/covariance", (rows, models, models), np.float64),
                take("rankings/precision", (rows, models), np.float64),
                take("rankings/sensitivity", (rows, models), np.float64),
                take("rankings/counts", (rows - 1, 2), np.int64),
            )
        counts, paired = take("counts", (terms.outputs,), np.int64), take("paired", (2,), np.float64)
        groups = []
        for place, (column, names, hidden) in enumerate(_read_names(header.get("groups"), terms.columns)):
            shapes = _group_shapes(len(names), models)
            own = {name: take(f"group {place}/{name}", *shapes[name]) for name in _GROUP_ARRAYS}
            groups.append(Groups(column=column, names=names, hidden=hidden, **own))
        if unread:
            raise UnseenError(
                f"sent an array {printable(next(iter(unread)), longest=100)!r}, which nobody asked for"
            )
        return cls(
            site=site,
            min_group=_whole(header.get("min_group"), 1),
            counts=tuple(counts.tolist()),
            sums=tuple(sums),
            rankings=rankings,
            paired=paired,
            groups=tuple(groups),
        )


_GROUP_ARRAYS = ("counts", "sums", "areas", "covariance", "smaller")


def _group_shapes(groups: int, models: int) -> dict[str, tuple[tuple[int, ...], type]]:
    return {
        "counts": ((groups,), np.int64),
        "sums": ((groups, models, 3), np.float64),
        "areas": ((groups, models), np.float64),
        "covariance": ((groups, models, models), np.float64),
        "smaller": ((groups,), np.int64),
    }


def _whole(value: object, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 40:
        raise UnseenError(
            f"sent {printable(value, longest=40)} where a whole number from {least} was expected"
        )
    return value


def _read_names(values: object, columns: Sequence[str]) -> list[tuple[str, tuple[str, ...], int]]:
    """Read the names of groups: of columns that were asked for, printable, and not endless."""
    if not isinstance(values, list) or len(values) != len(columns):
        raise UnseenError("sent groups of other columns than it was asked for")
    found: list[tuple[str, tuple[str, ...], int]] = []
    for column, each in zip(columns, values, strict=True):
        if not isinstance(each, dict) or each.get("column") != column:
            raise UnseenError("sent groups of other columns than it was asked for")
        names = each.get("names")
        if not isinstance(names, list) or len(names) > MOST_GROUPS or not all(map(_is_name, names)):
            raise UnseenError("sent unusable names of groups")
        if len(set(names)) < len(names):
            raise UnseenError("sent the name of a group twice")
        found.append((column, tuple(names), _whole(each.get("hidden"), 0)))
    return found


def _is_name(value: object) -> bool:
    return isinstance(value, str) and is_printable(value, longest=LONGEST_GROUP)


def judge_site(
    samples: SiteSamples,
    models: Sequence[JudgedModel],
    terms: JudgeTerms,
    *,
    min_group: int,
    batch_size: int = 256,
    progress: Progress = no_progress,
) -> SiteFindings:
    """Judge the models on a site's samples, from which small classes are left out already."""
    if samples.task != terms.task:
        kinds = {"classification": "classes", "regression": "values"}
        here, there = (kinds.get(task, task) for task in (samples.task, terms.task))
        raise UsageError(
            f"site {samples.site} has {here}; model {models[0].spec.name} predicts {there} (the classes of "
            "an ONNX file are named with --class)"
        )
    targets = number_targets(samples, terms.classes)
    outputs = [model.predict(samples, batch_size=batch_size, progress=progress) for model in models]
    sums = terms.empty_sums()
    truth = torch.from_numpy(targets)
    if not terms.classes:
        mean, std = terms.scale
        outputs, truth = [(each.double() - mean) / std for each in outputs], (truth - mean) / std
    for found, each in zip(sums, outputs, strict=True):
        found.add(each.double(), truth)
    values = [each.double().cpu().numpy() for each in outputs]
    measured = truth.numpy()
    rankings, counts = None, np.array([len(targets)])
    if terms.classes:
        rankings = find_rankings([*map(log_softmax, values)], targets, least=min_group)
        counts = np.bincount(targets, minlength=terms.outputs)
    return SiteFindings(
        site=samples.site,
        min_group=min_group,
        counts=tuple(counts.tolist()),
        sums=sums,
        rankings=rankings,
        paired=_compare(values, measured, classes=bool(terms.classes)),
        groups=tuple(
            _judge_groups(samples, column, values, measured, min_group=min_group, classes=bool(terms.classes))
            for column in terms.columns
        ),
    )


def _compare(outputs: Sequence[Floats], truth: npt.NDArray[Any], *, classes: bool) -> Floats:
    """Sum up where two models differ; zeros for one."""
    if len(outputs) < 2:
        return np.zeros(2)
    if classes:
        first, second = (each.argmax(axis=1) == truth for each in outputs)
        return np.array([(first & ~second).sum(), (second & ~first).sum()], dtype=np.float64)
    before, after = (np.abs(each.reshape(-1) - truth) for each in outputs)
    difference = after - before
    return np.array([difference.sum(), (difference**2).sum()])


def _judge_groups(
    samples: SiteSamples,
    column: str,
    outputs: Sequence[Floats],
    truth: npt.NDArray[Any],
    *,
    min_group: int,
    classes: bool,
) -> Groups:
    """Judge the groups that a column names, each on its own samples."""
    names, group_of = read_group_column(samples, column)
    sizes = np.bincount(group_of[group_of >= 0], minlength=len(names)).astype(np.int64)
    shown = shown_groups(sizes, samples=len(truth), least=min_group)
    models, chosen = len(outputs), [names[number] for number in shown]
    found: dict[str, Any] = {
        name: np.zeros(shape, kind) for name, (shape, kind) in _group_shapes(len(shown), models).items()
    }
    found["areas"][:], found["covariance"][:] = np.nan, np.nan
    for row, number in enumerate(shown):
        own = group_of == number
        parts = [each[own] for each in outputs]
        found["counts"][row] = own.sum()
        for place, part in enumerate(parts):
            if classes:
                found["sums"][row, place, 0] = (part.argmax(axis=1) == truth[own]).sum()
            else:
                errors = np.abs(part.reshape(-1) - truth[own])
                found["sums"][row, place] = errors.sum(), (errors**2).sum(), (errors**4).sum()
        if classes:
            areas = find_rankings([*map(log_softmax, parts)], truth[own], least=min_group)
            found["areas"][row], found["covariance"][row] = areas.areas[-1], areas.covariance[-1]
            used = areas.counts[areas.counts.min(axis=1) >= max(min_group, 2)]
            found["smaller"][row] = used.min() if len(used) else 0
    hidden = len(truth) - int(sizes[shown].sum())
    return Groups(column=column, names=tuple(chosen), hidden=hidden, **found)


def shown_groups(sizes: Counts, *, samples: int, least: int) -> list[int]:
    """Choose the groups that are counted: large enough, and so is what they leave.

    Everybody can subtract the groups from the whole. If the rest is not empty and smaller than a group may
    be, the smallest group is hidden with it.
    """
    shown = [number for number in range(len(sizes)) if sizes[number] >= least]
    shown.sort(key=lambda number: (-int(sizes[number]), number))
    while shown and 0 < samples - int(sizes[shown].sum()) < least:
        shown.pop()
    return sorted(shown)


def read_group_column(samples: SiteSamples, column: str) -> tuple[list[str], Counts]:
    """Return the names of a column's groups, and the group of every sample; -1 where it has no value."""
    place = next((i for i, each in enumerate(samples.columns) if each.name == column), None)
    if place is None:
        known = ", ".join(each.name for each in samples.columns) or "none, as it has no table"
        raise UsageError(f"--group-column {column}: site {samples.site} has no such column; it has: {known}")
    values, levels = samples.inputs[:, place], samples.columns[place].levels
    present = np.isfinite(values)
    if levels is None:
        numbers = np.unique(values[present])
        if len(numbers) > MOST_LEVELS or (numbers != np.round(numbers)).any():
            raise UsageError(
                f"--group-column {column}: site {samples.site} has {len(numbers)} different numbers there; "
                f"expected texts, or at most {MOST_LEVELS} whole numbers: sort them into ranges first"
            )
        codes = np.searchsorted(numbers, np.where(present, values, 0))
        levels = tuple(str(int(number)) for number in numbers)
    else:
        codes = np.where(present, values, 0)
    return list(levels), np.where(present, codes, -1).astype(np.int64)
