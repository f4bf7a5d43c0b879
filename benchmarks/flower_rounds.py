"""Benchmark of rounds on Flower, with 2, 4 and 8 sites and models of 1, 10 and 45 MB, against one process.

python benchmarks/flower_rounds.py --out results/performance/flower_rounds.json

Real Flower processes on this machine, with TLS and keys. Every site trains one step on four images, so nearly
all of the time is Flower's: messages, processes, transfer of the weights. All sites share the cores; on
separate machines only the coordinator's part grows with the number of sites.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from measure import options, report
from PIL import Image

from unseen.config import RunConfig
from unseen.deploy.coordinator.submit import run_on_flower
from unseen.deploy.testing import LocalFederation
from unseen.runner.run import run
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

SITES = tuple(f"s{number}" for number in range(8))
HELD_OUT = "held"
MODELS: dict[str, dict[str, Any]] = {
    "1 MB": {"model": "mnist-cnn", "image_size": 36},
    "10 MB": {"model": "mnist-cnn", "image_size": 92},
    "45 MB": {"model": "resnet18", "image_size": 64},
}


def make_images(folder: Path, sites: Iterable[str]) -> None:
    """Generate two classes of a few random images per site."""
    generator = np.random.default_rng(0)
    for site in sites:
        for name in ("x", "y"):
            place = folder / site / name
            place.mkdir(parents=True)
            for number in range(3):
                pixels = generator.integers(0, 256, (92, 92, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def job(data: Path, size: str, sites: int, rounds: int) -> RunConfig:
    """Configure FedAvg with one small step per round and one evaluation at the end."""
    return RunConfig.from_mapping(
        {
            **MODELS[size],
            "data": str(data),
            "sources": SITES[:sites],
            "hold_out": (HELD_OUT,),
            "rounds": rounds,
            "evaluate_every": rounds,
            "batches_per_epoch": 1,
            "batch_size": 4,
            "validation": 0.2,
            "test": 0.0,
            "lr": 0.001,
            "threads": 1,
            "workers": 1,
            "device": "cpu",
        }
    )


def seconds_of_rounds(out: Path) -> dict[str, Any]:
    """Return the seconds of all rounds but the first, and the bytes up and down per round."""
    rounds = [record for record in read_records(RunFolder(out).records) if record["event"] == "round"]
    return {
        "seconds": [record["seconds"] for _, record in pairwise(rounds)],
        "bytes_up": rounds[-1]["bytes_up"],
        "bytes_down": rounds[-1]["bytes_down"],
    }


def main() -> None:
    parser = options(__doc__)
    parser.set_defaults(repetitions=4)
    rounds = parser.parse_args().repetitions + 1
    taken: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        make_images(place / "images", (*SITES, HELD_OUT))
        with LocalFederation(place / "images", place / "federation").start((*SITES, HELD_OUT)) as federation:
            for size in MODELS:
                for sites in (2, 4, 8):
                    config, own = job(place / "images", size, sites, rounds), f"{size}, {sites} sites"
                    there, here = place / f"{own} there", place / f"{own} here"
                    run_on_flower(config, coordinator=federation.coordinator, out=there)
                    run(config, out=here)
                    taken[own] = {"Flower": seconds_of_rounds(there), "one process": seconds_of_rounds(here)}
                    print(own, taken[own], flush=True)
    medians = {
        f"{own}: {where}, s a round": round(statistics.median(found["seconds"]), 3)
        for own, both in taken.items()
        for where, found in both.items()
    }
    report("Rounds on Flower", medians, taken, parser.parse_args().out)


if __name__ == "__main__":
    main()
