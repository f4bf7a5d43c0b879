"""Data that a Python program already holds: arrays of samples, targets and domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet
from unseen.errors import UsageError


def from_arrays(
    inputs: npt.NDArray[Any],
    targets: npt.NDArray[Any] | Sequence[Any],
    domains: npt.NDArray[Any] | Sequence[Any],
    *,
    name: str = "arrays",
) -> DataSet:
    """Make a data set of arrays.

    inputs   images as uint8 (n, height, width) or (n, height, width, channels),
             or numbers (n, columns), used as they are
    targets  class names or numbers (integers, booleans, text), or floating point values for regression
    domains  the name of each sample's domain
    """
    inputs, labels, places = np.asarray(inputs), np.asarray(targets), np.asarray(domains).astype(str)
    if not len(inputs) == len(labels) == len(places):
        lengths = f"{len(inputs)}, {len(labels)} and {len(places)}"
        raise UsageError(f"inputs, targets and domains must be of one length, not {lengths}")
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        stored = inputs if inputs.ndim == 4 else inputs[..., None]
    elif inputs.ndim == 2 and np.issubdtype(inputs.dtype, np.number):
        stored = inputs.astype(np.float32)
    else:
        raise UsageError(
            f"inputs of shape {inputs.shape} and type {inputs.dtype} are neither images (uint8, n x height x "
            "width [x channels]) nor rows of numbers (n x columns)"
        )
    names, domain_of = np.unique(places, return_inverse=True)
    common: dict[str, Any] = {
        "name": name,
        "inputs": np.ascontiguousarray(stored),
        "domain_of": domain_of.astype(np.int64),
        "domains": tuple(names.tolist()),
    }
    if np.issubdtype(labels.dtype, np.floating):
        return DataSet(task="regression", targets=labels.astype(np.float32), **common)
    classes, numbers = np.unique(labels, return_inverse=True)
    return DataSet(
        task="classification",
        targets=numbers.astype(np.int64),
        classes=tuple(str(label) for label in classes.tolist()),
        **common,
    )
