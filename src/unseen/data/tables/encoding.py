"""Encode raw tables as network inputs, with statistics of the source domains alone.

Numbers are scaled, missing ones filled with the mean and flagged, texts become one-hot columns. All of it is
learned from the clients' training rows, so a held-out domain has no influence on it. A client
discloses counts and sums per column; merging is a plain sum, so it also works under secure aggregation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column, DataSet, Indices
from unseen.data.tables.column_statistics import (
    Statistics,
    Values,
    client_statistics,
    means,
    merge_statistics,
    standard_deviations,
)
from unseen.errors import UnseenError, unknown_name

ScalingStatistics = Literal["federated", "local"]
SCALINGS: tuple[ScalingStatistics, ...] = ("federated", "local")
LARGEST = 1e6
"""Bound on scaled values, far beyond any source value, so that none overflows."""


@dataclass(frozen=True)
class TableEncoding:
    """Encoding of a raw table as network inputs.

    columns     the raw columns, with all levels that raw inputs number
    means, stds of each numeric column over the sources (0 and 1 for text)
    seen        whether the sources have any value in that column; others become no feature
    flagged     numeric columns that get a feature "is missing", because sources miss values there
    known       for text columns the level numbers that occur in the sources
    statistics  "federated": the same scale everywhere; "local": every domain by its own inputs
    """

    columns: tuple[Column, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]
    seen: tuple[bool, ...]
    flagged: tuple[bool, ...]
    known: tuple[tuple[int, ...], ...]
    statistics: ScalingStatistics = "federated"
    target_mean: float = 0.0
    target_std: float = 1.0

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Name every input of the network."""
        names: list[str] = []
        for i, column in enumerate(self.columns):
            if not self.seen[i]:
                continue
            if column.levels is not None:
                names += [f"{column.name}={column.levels[number]}" for number in self.known[i]]
                names.append(f"{column.name}=other")
            else:
                names += [column.name, f"{column.name} is missing"] if self.flagged[i] else [column.name]
        return tuple(names)

    def apply(self, raw: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Encode raw rows; with "local" statistics they must be the rows of one domain."""
        if raw.ndim != 2 or raw.shape[1] != len(self.columns):
            raise ValueError(f"raw rows have shape {raw.shape}; expected (rows, {len(self.columns)})")
        features: list[npt.NDArray[Any]] = []
        for i, column in enumerate(self.columns):
            if not self.seen[i]:
                continue
            values = raw[:, i].astype(np.float64)
            if column.levels is not None:
                matches = values[:, None] == np.array(self.known[i], dtype=np.float64)
                features += [*matches.T, ~matches.any(axis=1)]
                continue
            missing = ~np.isfinite(values)
            mean, std = self._scale(i, values[~missing])
            scaled = np.where(missing, 0.0, (values - mean) / std)
            features.append(np.clip(scaled, -LARGEST, LARGEST))
            features += [missing] if self.flagged[i] else []
        encoded = np.empty((len(raw), len(features)), dtype=np.float32)
        for position, feature in enumerate(features):
            encoded[:, position] = feature
        return encoded

    def _scale(self, column: int, values: npt.NDArray[np.float64]) -> tuple[float, float]:
        if self.statistics == "federated" or not len(values):
            return self.means[column], self.stds[column]
        mean, std = float(values.mean()), float(values.std())
        return mean, std if std > 1e-12 * abs(mean) else 1.0

    def describe_scaling(self) -> str:
        """Say by whose statistics numbers are scaled."""
        return {
            "federated": "numbers scaled by means and stds that the clients' sums gave together",
            "local": "numbers scaled in every domain by that domain's own inputs, the held-out one's too",
        }[self.statistics]

    def to_dict(self) -> dict[str, Any]:
        """Describe the encoding in plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> TableEncoding:
        """Read what `to_dict` returned, also after a round trip through JSON."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in described.items()
        }
        fields["columns"] = tuple(
            Column(column["name"], None if column["levels"] is None else tuple(column["levels"]))
            for column in described["columns"]
        )
        fields["known"] = tuple(tuple(numbers) for numbers in described["known"])
        return cls(**fields)


def fit_encoding(
    data: DataSet, client_rows: Sequence[Indices], *, statistics: ScalingStatistics = "federated"
) -> TableEncoding:
    """Learn the encoding in two rounds of client sums: the means, then the squares about them."""
    if not data.columns:
        raise ValueError(f"{data.name} is not a raw table: it has no columns to encode")
    first = merge_statistics([client_statistics(data, rows) for rows in client_rows])
    centres = means(first)
    second = merge_statistics([client_statistics(data, rows, about=centres) for rows in client_rows])
    return make_encoding(data, first, second, centres=centres, statistics=statistics)


def make_encoding(
    data: DataSet,
    first: Statistics,
    second: Statistics,
    *,
    centres: Values,
    statistics: ScalingStatistics = "federated",
) -> TableEncoding:
    """Make the encoding from the sums of all clients, about zero and about the centres that those gave."""
    if statistics not in SCALINGS:
        raise unknown_name("table statistics", statistics, SCALINGS)
    mean = means(second, about=centres)
    std = standard_deviations(second, mean)
    width = len(data.columns)
    numeric = np.array([column.levels is None for column in data.columns])
    counts = [first.get(f"levels:{column.name}", np.zeros(0)) for column in data.columns]
    if not first["count"][:width].any():
        raise UnseenError(
            f"{data.name}: the source domains have no value in any column; nothing to learn from"
        )
    return TableEncoding(
        columns=data.columns,
        means=tuple(mean[:width].tolist()),
        stds=tuple(std[:width].tolist()),
        seen=tuple((first["count"][:width] > 0).tolist()),
        flagged=tuple((numeric & (first["missing"][:width] > 0)).tolist()),
        known=tuple(tuple(np.flatnonzero(count).tolist()) for count in counts),
        statistics=statistics,
        target_mean=float(mean[width]),
        target_std=float(std[width]),
    )


def encode(data: DataSet, encoding: TableEncoding) -> DataSet:
    """Encode a raw table; regression targets are standardized. The fingerprint stays the raw table's."""
    raw = align_columns(data, encoding.columns)
    inputs = np.empty((len(data), len(encoding.feature_names)), dtype=np.float32)
    for domain in data.domains:
        rows = data.indices(domain)
        inputs[rows] = encoding.apply(raw[rows])
    targets = data.targets
    if data.task_type.standardizes_targets:
        targets = ((targets.astype(np.float64) - encoding.target_mean) / encoding.target_std).astype(
            np.float32
        )
    return replace(
        data, inputs=inputs, targets=targets, columns=(), notes=(*data.notes, encoding.describe_scaling())
    )


def align_columns(data: DataSet, columns: tuple[Column, ...]) -> npt.NDArray[Any]:
    """Return raw inputs in the order and the level numbers of `columns`, matched by name.

    A column without any level is one without any value, of whatever kind the others have.
    """
    if data.columns == columns:
        return data.inputs
    own = {column.name: (i, column.levels) for i, column in enumerate(data.columns)}
    raw = np.full((len(data), len(columns)), np.nan, dtype=np.float32)
    for position, column in enumerate(columns):
        if column.name not in own:
            raise unknown_name(f"column of {data.name} (the encoding needs it)", column.name, own)
        i, levels = own[column.name]
        if levels == ():
            continue
        if (levels is None) != (column.levels is None):
            expected, found = ("numbers", "text") if column.levels is None else ("text", "numbers")
            raise UnseenError(
                f"{data.name}: column {column.name!r} holds {found}; the encoding expects {expected}"
            )
        raw[:, position] = data.inputs[:, i]
        if levels is not None and column.levels is not None:
            numbers = {name: number for number, name in enumerate(column.levels)}
            translated = np.array([*(numbers.get(name, np.nan) for name in levels), np.nan])
            codes = np.nan_to_num(data.inputs[:, i], nan=-1).astype(np.int64)
            raw[:, position] = translated[codes]
    return raw
