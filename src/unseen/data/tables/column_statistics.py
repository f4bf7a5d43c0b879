"""Sums over the columns of a table: what clients disclose so that all of them scale alike.

A client's sums are counts and sums of values per column; those of several clients add up to those of the
pooled rows. As one vector they can be sent to a server: in float64 as they are, or as whole numbers that a
masked or encrypted sum adds up without any rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column, DataSet, Indices
from unseen.errors import UnseenError

Statistics = dict[str, npt.NDArray[Any]]
Values = npt.NDArray[np.float64]


def sum_columns(values: Values, columns: Sequence[Column], *, about: Values | None = None) -> Statistics:
    """Sum rows of a raw table, whose last column is the target: one entry per column.

    count, missing       present and missing values
    sum, square          sums of values and of squares, about given centres (default 0): a second round
                         about the means of the first loses no digits, however large the values
    levels:<column>      how often each level occurs
    """
    textual = [i for i, column in enumerate(columns) if column.levels is not None]
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
        levels = columns[i].levels or ()
        statistics[f"levels:{columns[i].name}"] = np.bincount(codes, minlength=len(levels))
    return statistics


def without_small_groups(values: Values, columns: Sequence[Column], least: int) -> Values:
    """Treat as missing what fewer than `least` rows have: a sum or a count over them would tell of each."""
    kept = values.copy()
    for i in range(kept.shape[1]):
        present = np.isfinite(values[:, i])
        if i < len(columns) and columns[i].levels is not None:
            codes = np.where(present, values[:, i], 0).astype(np.int64)
            rare = np.bincount(codes[present], minlength=1) < least
            kept[present & rare[np.where(present, codes, 0)], i] = np.nan
        elif np.count_nonzero(present) < least:
            kept[:, i] = np.nan
    return kept


def client_statistics(data: DataSet, rows: Indices, *, about: Values | None = None) -> Statistics:
    """Sum some rows of a raw table and their targets; classes are not scaled and count as missing."""
    scaled = data.task_type.standardizes_targets
    targets = data.targets[rows].astype(np.float64) if scaled else np.full(len(rows), np.nan)
    values = np.column_stack([data.inputs[rows].astype(np.float64), targets])
    return sum_columns(values, data.columns, about=about)


def merge_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Add up the statistics of several clients."""
    merged = {key: value.copy() for key, value in parts[0].items()}
    for part in parts[1:]:
        for key, value in part.items():
            merged[key] = merged[key] + value
    return merged


def means(statistics: Statistics, *, about: Values | None = None) -> Values:
    """Compute the mean of every column, 0 where no value is present."""
    mean: Values = statistics["sum"] / np.maximum(statistics["count"], 1)
    return mean if about is None else mean + about


def standard_deviations(statistics: Statistics, mean: Values) -> Values:
    """Compute the std of every column from statistics about nearly its mean; 1 for a constant one."""
    count = np.maximum(statistics["count"], 1)
    variance = statistics["square"] / count - np.square(statistics["sum"] / count)
    std = np.sqrt(np.maximum(variance, 0.0))
    return np.where(std > 1e-12 * np.abs(mean), std, 1.0)


def explain_impossible(statistics: Statistics, columns: Sequence[Column], *, rows: int) -> str:
    """Explain why statistics cannot be those of so many rows; "" if they can."""
    names = [*(column.name for column in columns), "the target"]
    count, total, square = (statistics[key] for key in ("count", "sum", "square"))
    counted = (count >= 0) & (statistics["missing"] >= 0) & (count + statistics["missing"] == rows)
    finite = np.isfinite(total) & np.isfinite(square)
    # The mean of squares is never below the square of the mean, up to rounding.
    with np.errstate(over="ignore", invalid="ignore"):
        spread = square >= np.square(total) / np.maximum(count, 1) * (1 - 1e-6)
    summed = finite & spread & ((count > 0) | ((total == 0) & (square == 0)))
    for i, name in enumerate(names):
        if not counted[i]:
            return f"column {name!r}: {count[i]} values and {statistics['missing'][i]} missing of {rows} rows"
        if not summed[i]:
            return f"column {name!r}: its sum and its sum of squares cannot be of the same values"
        levels = statistics.get(f"levels:{name}") if i < len(columns) else None
        if levels is not None and (levels.min(initial=0) < 0 or levels.sum() != count[i]):
            return f"column {name!r}: {levels.sum()} texts counted of {count[i]}"
    return ""


# as one vector


def _whole_keys(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """List the counts in a vector and their lengths."""
    width = len(columns) + 1
    levels = [(f"levels:{each.name}", len(each.levels)) for each in columns if each.levels is not None]
    return [("count", width), ("missing", width), *levels]


def vector_length(columns: Sequence[Column], *, exact: bool) -> int:
    """Count the numbers of `to_vector`."""
    real = 2 * (len(columns) + 1)
    return sum(length for _, length in _whole_keys(columns)) + (DIGITS * real if exact else real)


def to_vector(statistics: Statistics, columns: Sequence[Column], *, exact: bool) -> npt.NDArray[Any]:
    """Write statistics as one vector: float64, or int64 with each sum as `DIGITS` digits if `exact`."""
    whole = np.concatenate([statistics[key] for key, _ in _whole_keys(columns)])
    real = np.concatenate([statistics["sum"], statistics["square"]])
    if exact:
        return np.concatenate([whole.astype(np.int64), to_digits(real).ravel()])
    return np.concatenate([whole.astype(np.float64), real])


def from_vector(vector: npt.NDArray[Any], columns: Sequence[Column], *, exact: bool) -> Statistics:
    """Read statistics from a vector, or from the sum of several."""
    statistics, place = Statistics(), 0
    for key, length in _whole_keys(columns):
        statistics[key] = vector[place : place + length].astype(np.int64)
        place += length
    rest = vector[place:]
    real = from_digits(rest.reshape(-1, DIGITS)) if exact else rest.astype(np.float64)
    statistics["sum"], statistics["square"] = np.split(real, 2)
    return statistics


DIGIT_BITS, DIGITS, FRACTION_BITS = 20, 13, 120
"""Sums are whole multiples of 2^-120 below 2^140, in digits of 20 bits, least significant first: digits of
many clients add up within the range of every protection, and their sum is exact."""
_MASK = (1 << DIGIT_BITS) - 1


def to_digits(values: Values) -> npt.NDArray[np.int64]:
    """Split numbers into digits of the number's own sign; refuse numbers of 2^140 and more."""
    found = np.zeros((len(values), DIGITS), dtype=np.int64)
    for row, value in zip(found, values.tolist(), strict=True):
        if not abs(value) < 2.0 ** (DIGIT_BITS * DIGITS - FRACTION_BITS):
            raise UnseenError(
                f"a column sum of magnitude {abs(value):.3g} is too large to be added up under a protection; "
                "rescale the column"
            )
        whole, sign = abs(int(math.ldexp(value, FRACTION_BITS))), -1 if value < 0 else 1
        row[:] = [sign * (whole >> DIGIT_BITS * place & _MASK) for place in range(DIGITS)]
    return found


def from_digits(digits: npt.NDArray[np.int64]) -> Values:
    """Join digits, or sums of digits of several clients, to the nearest float64 each."""
    joined = [
        sum(digit << DIGIT_BITS * place for place, digit in enumerate(row)) / (1 << FRACTION_BITS)
        for row in digits.tolist()
    ]
    return np.array(joined, dtype=np.float64)
