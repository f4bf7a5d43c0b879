"""Requirements of a recipe: its data, pretrained weights, and the approximate number of training samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from typing import Any

from unseen.bench.bench_job import RELEASED
from unseen.bench.grid import Grid
from unseen.data import list_sources
from unseen.errors import UnseenError
from unseen.methods import make_method
from unseen.models.weight_sources import IMAGENET, find_weights, weights_place

NO_WEIGHTS = "none"
SAMPLES: dict[str, dict[str, int]] = {
    "rotated-mnist": dict.fromkeys(("0", "15", "30", "45", "60", "75"), 1000),
    "rotated-mnist-disjoint": dict.fromkeys(("0", "15", "30", "45", "60", "75"), 11667),
    "digits": {"mnist": 70000, "mnistm": 68002, "usps": 9298, "svhn": 99289, "syn": 500000},
    "digits-chars74k": {"mnist": 70000, "mnistm": 68002, "usps": 9298, "font": 10160, "scene": 885},
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
"""Samples per domain of the releases (WILDS: the training part), some rounded: enough for an estimate."""


@dataclass(frozen=True)
class Readiness:
    """What a recipe is missing.

    data     what to download and where to put it; empty if at least two domains and a held-out one exist
    domains  domains of the recipe without files, which are left out
    weights  networks whose pretrained weights are missing
    """

    data: str = ""
    domains: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()

    @property
    def runnable(self) -> bool:
        """Whether the recipe can be run as it is, or with some columns left out."""
        return not self.data and not self.weights


def check_readiness(grid: Grid, root: Path | None) -> Readiness:
    """Look for a recipe's files below the data root, without reading them."""
    name = str(grid.common["data"])
    source = dict(list_sources()).get(name)
    if source is None:
        return Readiness(data=f"{name} is not a data set of this version")
    present = source.present_domains(root)
    held_out = source.hold_out if grid.hold_out == (RELEASED,) else grid.hold_out
    wanted = dict.fromkeys((*held_out, *grid.common.get("sources", ())))
    absent = tuple(domain for domain in wanted if domain not in present)
    enough = len(present) >= 2 and not set(held_out) <= set(absent)
    put = source.acquisition.put if source.acquisition else name
    below = f"below {root}" if root else "below a folder that --data-root or UNSEEN_DATA names"
    return Readiness(
        data="" if enough else f"put {put} {below}",
        domains=absent if enough else (),
        weights=tuple(model for model in pretrained(grid) if find_weights(model, root) is None),
    )


def pretrained(grid: Grid) -> list[str]:
    """List the networks that start from ImageNet weights."""
    options = [{**grid.common, **given} for given in grid.methods.values()]
    return list(dict.fromkeys(str(given["model"]) for given in options if given.get("weights") == IMAGENET))


def with_weights(grid: Grid, root: Path | None, *, from_scratch: bool = False) -> Grid:
    """Replace the weights `imagenet` by their files, or by random ones with `from_scratch`."""

    def resolved(options: Mapping[str, Any], model: str) -> dict[str, Any]:
        wanted = options.get("weights")
        kept = {name: value for name, value in options.items() if name != "weights"}
        if wanted in (None, NO_WEIGHTS) or (wanted == IMAGENET and from_scratch):
            return kept
        if wanted != IMAGENET:
            return dict(options)
        found = find_weights(model, root)
        if found is None:
            raise UnseenError(
                f"{model} starts from ImageNet weights in the paper, which are missing: put "
                f"{weights_place(model)} below the data root, or start from random ones: --from-scratch"
            )
        return {**kept, "weights": str(found)}

    common = dict(grid.common)
    shared = {"weights": common.pop("weights")} if "weights" in common else {}
    methods = {
        label: resolved({**shared, **options}, str(options.get("model", common.get("model"))))
        for label, options in grid.methods.items()
    }
    return replace(grid, common=common, methods=methods)


def without_domains(grid: Grid, absent: tuple[str, ...]) -> Grid:
    """Leave out domains that have no files, both as held-out domains and as sources."""
    if not absent:
        return grid
    common = dict(grid.common)
    if "sources" in common:
        common["sources"] = [name for name in common["sources"] if name not in absent]
    hold_out = tuple(name for name in grid.hold_out if name not in absent)
    note = f"{grid.note.strip()}\n\nLeft out because files are missing: {', '.join(absent)}."
    return replace(grid, common=common, hold_out=hold_out, note=note)


def planned_samples(grid: Grid, label: str, held_out: str) -> int:
    """Estimate how many samples the clients of one job train on over all rounds; 0 if unknown."""
    options: dict[str, Any] = {**grid.common, **grid.methods[label]}
    most = options.get("samples_per_domain") or inf
    sizes = {name: min(size, most) for name, size in SAMPLES.get(str(options["data"]), {}).items()}
    wanted = options.get("sources") or tuple(sizes)
    sources = [sizes[name] for name in wanted if name != held_out and name in sizes]
    parts = options.get("clients_per_domain", 1)
    training = 1 - options.get("validation", 0.1) - options.get("test", 0.1)
    batch_size = options.get("batch_size", 32)
    method = make_method(options.get("method", label), options.get("settings"))
    pooled = method.topology == "pooled"

    def epoch(batches: int | None) -> int:
        if batches is None:
            return int(parts * sum(ceil(size * training / parts) for size in sources))
        return int(batches * batch_size * (1 if pooled else parts * len(sources)))

    phases = method.training_schedule(
        rounds=options["rounds"],
        local_epochs=options.get("local_epochs", 1),
        batches_per_epoch=options.get("batches_per_epoch"),
    )
    participating = 1.0 if pooled else options.get("fraction", 1.0)
    return int(sum(epochs * epoch(batches) for epochs, batches in phases) * participating)
