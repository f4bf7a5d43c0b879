"""Benchmark of batch preparation: its fraction of the training time, on real images.

    UNSEEN_DATA=... python benchmarks/batches.py --out results/performance/batches.json

PACS at 64 px, ResNet-18, batch 32, standard augmentation, one thread. For comparison, a plain data loader
that decodes and augments image by image, and the time from a second start to the first batch.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from measure import as_process, interleaved, options, report

STEPS, BATCH, SIZE = 12, 32, 64


def ours() -> None:
    """Time each of gather, augment, normalize; forward, backward, step."""
    started = time.perf_counter()
    import torch

    torch.set_num_threads(1)
    from unseen.data import DataRequest, Samples, load_data
    from unseen.data.transforms import Normalize
    from unseen.models import FlatState, InputSpec, build_model
    from unseen.training import Preprocessor, batch_positions
    from unseen.training.optimizers import FlatSGD

    data = load_data(DataRequest("pacs", image_size=SIZE))
    samples = Samples(data, data.indices("photo"))
    generator = torch.Generator().manual_seed(0)
    positions = batch_positions(len(samples), BATCH, generator=generator)
    plain = Preprocessor(Normalize(mean=(0.5,), std=(0.5,)), "standard")
    plain(samples.gather(next(positions)), generator)
    first_batch = time.perf_counter() - started

    network = build_model("resnet18", InputSpec(data.input_shape, data.outputs), seed=0)
    prepare = Preprocessor(Normalize(mean=network.pixel_mean, std=network.pixel_std), "standard")
    flat = FlatState(network)
    optimiser = FlatSGD(flat.parameters, flat.gradient, lr=0.01, momentum=0.9)
    preparing, training = [], []
    for _, rows in zip(range(STEPS), positions, strict=False):
        start = time.process_time()
        batch = prepare(samples.gather(rows), generator)
        middle = time.process_time()
        flat.gradient.zero_()
        torch.nn.functional.cross_entropy(network(batch.inputs), batch.targets).backward()
        optimiser.step()
        preparing.append(middle - start)
        training.append(time.process_time() - middle)
    share = statistics.median(preparing) / (statistics.median(preparing) + statistics.median(training))
    values = {
        "share of training time": share,
        "seconds a batch": statistics.median(preparing),
        "seconds a step": statistics.median(training),
        "second start to first batch": first_batch,
    }
    print(json.dumps(values))


def one_by_one() -> None:
    """Load as a plain loader does: open, decode, resize, crop, flip and normalize image by image."""
    import os

    import numpy as np
    import torch
    from PIL import Image

    torch.set_num_threads(1)
    files = sorted((Path(os.environ["UNSEEN_DATA"]) / "pacs/photo").rglob("*.jpg"))[: STEPS * BATCH]
    rng = np.random.default_rng(0)
    start = time.process_time()
    for path in files:
        image = Image.open(path).convert("RGB")
        side = int(min(image.size) * rng.uniform(0.9, 1))
        left, top = (int(rng.integers(0, extent - side + 1)) for extent in image.size)
        image = image.crop((left, top, left + side, top + side)).resize((SIZE, SIZE))
        pixels = np.asarray(image, dtype=np.float32) / 255
        if rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        torch.from_numpy(np.ascontiguousarray((pixels - 0.5) / 0.5)).permute(2, 0, 1)
    print(json.dumps({"seconds a batch": (time.process_time() - start) / STEPS}))


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] in ("ours", "one-by-one"):
        {"ours": ours, "one-by-one": one_by_one}[sys.argv[1]]()
        return
    given = options(__doc__).parse_args()
    as_process(__file__, "ours")
    taken = interleaved(
        {
            "ours": lambda: as_process(__file__, "ours"),
            "one by one": lambda: as_process(__file__, "one-by-one"),
        },
        given.repetitions,
    )
    mine = {key: statistics.median(one[key] for one in taken["ours"]) for key in taken["ours"][0]}
    loader = statistics.median(one["seconds a batch"] for one in taken["one by one"])
    values: dict[str, Any] = {
        "share of training time spent on preparing batches": mine["share of training time"],
        "the same share with a loader that decodes image by image": loader
        / (loader + mine["seconds a step"]),
        "second start to first batch, s": mine["second start to first batch"],
    }
    report("Preparing batches: PACS, ResNet-18, 64 px", values, taken, given.out)


if __name__ == "__main__":
    main()
