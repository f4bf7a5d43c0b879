"""How many samples a recipe trains on, told before anything is loaded."""

from __future__ import annotations

from math import ceil
from typing import Any

from unseen.bench.grid import Grid

SAMPLES: dict[str, dict[str, int]] = {
    "rotated-mnist": dict.fromkeys(("0", "15", "30", "45", "60", "75"), 1000),
    "rotated-mnist-disjoint": dict.fromkeys(("0", "15", "30", "45", "60", "75"), 11667),
    "digits": {"mnist": 70000, "mnistm": 68002, "usps": 9298, "svhn": 99289, "syn": 500000},
    "digits-dg": dict.fromkeys(("mnist", "mnist_m", "svhn", "syn"), 6000),
    "pacs": {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    "vlcs": {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376},
    "office-home": {"Art": 2427, "Clipart": 4365, "Product": 4439, "RealWorld": 4357},
    "office-caltech-home": {"Amazon": 780, "Caltech": 850, "Webcam": 230}
    | {"Art": 400, "Clipart": 600, "Product": 700, "RealWorld": 600},
    "camelyon17": {"hospital_0": 59436, "hospital_3": 129838, "hospital_4": 146722},
    "povertymap": {f"domain {number}": 454 for number in range(26)},
    "fmow": {str(year): 9061 for year in range(2002, 2013)},
    "terra-incognita": {"location_100": 4741, "location_38": 9736, "location_43": 3970, "location_46": 5883},
}
"""Samples of each domain in the releases (WILDS: those that train), some rounded: enough for an estimate."""


def samples_of(grid: Grid, label: str, held_out: str) -> int:
    """About how many samples the clients of one job train on, all rounds together; 0 if that is not known."""
    options: dict[str, Any] = {**grid.common, **grid.methods[label]}
    sizes = SAMPLES.get(str(options["data"]), {})
    wanted = options.get("sources") or tuple(sizes)
    sources = [sizes[name] for name in wanted if name != held_out and name in sizes]
    parts = options.get("clients_per_domain", 1)
    share = 1 - options.get("validation", 0.1) - options.get("test", 0.1)
    settings = options.get("settings", {})
    rounds, epochs = options["rounds"], options.get("local_epochs", 1)
    limit, batch = options.get("batches_per_epoch"), options.get("batch_size", 32)
    working = options.get("fraction", 1.0)

    def epoch(batches: int | None) -> int:
        whole = [ceil(size * share / parts) for size in sources]
        return int(parts * sum(size if batches is None else batches * batch for size in whole))

    method = options.get("method", label)
    if method == "csac":
        first = settings.get("acquisition_batches_per_epoch", limit)
        return int(
            settings.get("acquisition_epochs", 30) * epoch(first) + (rounds - 1) * epochs * epoch(limit)
        )
    if method == "deepall" and limit is not None:
        return int(rounds * epochs * limit * batch)
    return int(rounds * epochs * epoch(limit) * (1.0 if method == "deepall" else working))
