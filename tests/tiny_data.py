"""A tiny data set: images of a few domains that networks learn within seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from unseen.data import DataSet
from unseen.federation import PartitionConfig
from unseen.methods import METHODS

CLASSES = 3


def tiny_data(
    domains: tuple[str, ...] = ("a", "b", "c", "held"),
    *,
    per_class: int = 8,
    missing: tuple[str, int] | None = None,
) -> DataSet:
    """Images 8x8: the class is a bright row, the domain a tint; `missing` = (domain, class) to leave out."""
    inputs, targets, domain_of = [], [], []
    for number, domain in enumerate(domains):
        generator = np.random.default_rng(sum(domain.encode()))
        for label in range(CLASSES):
            if (domain, label) == missing:
                continue
            images = generator.integers(0, 90, (per_class, 8, 8, 3))
            images[:, 2 * label : 2 * label + 2] += 120
            images[..., sum(domain.encode()) % 3] += 40
            inputs.append(images)
            targets += [label] * per_class
            domain_of += [number] * per_class
    return DataSet(
        name="tiny",
        task="classification",
        inputs=np.concatenate(inputs).astype(np.uint8),
        targets=np.array(targets, dtype=np.int64),
        domain_of=np.array(domain_of, dtype=np.int64),
        domains=domains,
        classes=tuple(f"class {label}" for label in range(CLASSES)),
    )


def fitting_options(method: str) -> dict[str, Any]:
    """Options of a run in which every client holds as many domains as the method compares."""
    return {"partition": "mixed", "heterogeneity": 0.0} if METHODS[method].domains_per_client > 1 else {}


def fitting_partition(method: str) -> PartitionConfig:
    """The partition of `fitting_options`."""
    options = fitting_options(method)
    return PartitionConfig(
        kind=options.get("partition", "domain"), heterogeneity=options.get("heterogeneity", 1.0)
    )
