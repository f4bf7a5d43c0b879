"""Benchmark of `--train last-stage` on cached features: images per second against two references.

    python benchmarks/partial_training.py --out results/performance/partial_training.json

One client of random images trains ResNet-18 at 128 pixels, 20 batches of 32 per measurement, one thread:
`cached` trains the last stage on cached features, `all` the whole network, both by the product's loop;
`bare` is a plain PyTorch loop that fine-tunes the last stage and runs the frozen layers in every step.
`bytes` is the size of the update that each of the product's clients sends.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import interleaved, median_ratio, options, report
from torch.nn import functional

from unseen.config import RunConfig
from unseen.data import from_arrays
from unseen.engine.experiment import RoundStart, Workspace
from unseen.models import InputSpec, build_model
from unseen.models.splitting import LAST_STAGE, split_network
from unseen.runner.prepare import prepare_run

SIDE, BATCH, BATCHES, IMAGES = 128, 32, 20, 320


def make_workspace(train: str, precision: str) -> Workspace:
    """Prepare one client of random images that trains a part of ResNet-18."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (IMAGES + 80, SIDE, SIDE, 3), dtype=np.uint8)
    data = from_arrays(images, np.arange(len(images)) % 7, ["a"] * IMAGES + ["b"] * 80)
    config = RunConfig.from_mapping(
        {
            "data": "random",
            "hold_out": "b",
            "model": "resnet18",
            "train": train,
            "batch_norm": "frozen",
            "augment": "none",
            "precision": precision,
            "batches_per_epoch": BATCHES,
            "batch_size": BATCH,
            "validation": 0.0,
            "test": 0.0,
            "threads": 1,
        }
    )
    return Workspace(prepare_run(config, data=data).experiment)


def train_client(workspace: Workspace, weights: torch.Tensor) -> dict[str, Any]:
    """Time one client's round."""
    started = time.perf_counter()
    update = workspace.train_client(0, {}, RoundStart(1, weights))
    return {"images_per_second": update.seen / (time.perf_counter() - started), "bytes": update.nbytes}


def train_bare() -> dict[str, Any]:
    """Time a plain loop over the same number of batches: frozen layers, then the trained ones."""
    network = build_model("resnet18", InputSpec((3, SIDE, SIDE), 7), seed=0)
    frozen, trained = split_network(network, LAST_STAGE, shape=(3, SIDE, SIDE))
    frozen, trained = (part.to(memory_format=torch.channels_last) for part in (frozen, trained))
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    images = torch.randint(0, 256, (IMAGES, 3, SIDE, SIDE), dtype=torch.uint8)
    targets = torch.arange(IMAGES) % 7
    trained.eval()
    started = time.perf_counter()
    for number in range(BATCHES):
        rows = torch.arange(number * BATCH, (number + 1) * BATCH) % IMAGES
        batch = (images[rows].float() / 255).to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        functional.cross_entropy(trained(frozen(batch)), targets[rows]).backward()
        optimizer.step()
    return {"images_per_second": BATCH * BATCHES / (time.perf_counter() - started)}


def main() -> None:
    """Measure in turn and report ratios."""
    parser = options(__doc__)
    parser.add_argument("--precision", default="float32", help="of the product's two measures")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["UNSEEN_CACHE"] = str(Path(cache))
        parts = {name: make_workspace(name, given.precision) for name in ("last-stage", "all")}
        start = {name: workspace.flat.read() for name, workspace in parts.items()}
        taken = interleaved(
            {
                "cached": partial(train_client, parts["last-stage"], start["last-stage"]),
                "all": partial(train_client, parts["all"], start["all"]),
                "bare": train_bare,
            },
            given.repetitions,
        )
    ratios = {
        f"cached against {other}": round(median_ratio(taken, "cached", other, "images_per_second"), 2)
        for other in ("all", "bare")
    }
    sizes = {f"bytes of an update, {name}": taken[name][0]["bytes"] for name in ("cached", "all")}
    report(f"Partial training in {given.precision}: images per second", {**ratios, **sizes}, taken, given.out)


if __name__ == "__main__":
    main()
