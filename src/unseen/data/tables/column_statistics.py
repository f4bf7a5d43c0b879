"""Column statistics: the counts and sums a client discloses so that all tables are scaled alike.

Merging is a plain sum, so it also works under secure aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices

Statistics = dict[str, npt.NDArray[Any]]


def client_statistics(
    data: DataSet, rows: Indices, *, about: npt.NDArray[np.float64] | None = None
) -> Statistics:
    """Sum up some rows of a raw table: one entry for each of its columns, then the target.

    count, missing       present and missing values
    sum, square          sums of values and of squares, about given centres (default 0): a second round
                         about the means of the first loses no digits, however large the values
    levels:<column>      how often each level occurs
    """
    values = np.column_stack([data.inputs[rows].astype(np.float64), _target_values(data, rows)])
    textual = [i for i, column in enumerate(data.columns) if column.levels is not None]
    present = np.isfinite(values)
    centred = np.where(present, values - (0.0 if about is None else about), 0.0)
    centred[:, textual] = 0.0
    statistics: Statistics = {
        "count": present.sum(axis=0),
        "missing": (~present).sum(axis=0),
        "sum": centred.sum(axis=0),
        "square": np.square(centred).sum(axis=0),
    }
    for i in textual:
        codes = values[present[:, i], i].astype(np.int64)
        levels = data.columns[i].levels or ()
        statistics[f"levels:{data.columns[i].name}"] = np.bincount(codes, minlength=len(levels))
    return statistics


def merge_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Add up the statistics of several clients."""
    merged = {key: value.copy() for key, value in parts[0].items()}
    for part in parts[1:]:
        for key, value in part.items():
            merged[key] = merged[key] + value
    return merged


def means(statistics: Statistics, *, about: npt.NDArray[np.float64] | None = None) -> npt.NDArray[np.float64]:
    """Mean of every column, 0 where no value is present."""
    mean: npt.NDArray[np.float64] = statistics["sum"] / np.maximum(statistics["count"], 1)
    return mean if about is None else mean + about


def standard_deviations(statistics: Statistics, mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the std of every column from statistics about nearly its mean; 1 for a constant one."""
    count = np.maximum(statistics["count"], 1)
    variance = statistics["square"] / count - np.square(statistics["sum"] / count)
    std = np.sqrt(np.maximum(variance, 0.0))
    return np.where(std > 1e-12 * np.abs(mean), std, 1.0)


def _target_values(data: DataSet, rows: Indices) -> npt.NDArray[np.float64]:
    """Targets to be scaled; classes are not, and count as missing."""
    if data.task_type.standardizes_targets:
        return data.targets[rows].astype(np.float64)
    return np.full(len(rows), np.nan)
