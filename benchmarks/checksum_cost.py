"""Cost of checksums: a resume up to its first batch, and `unseen predict`, beside a tree without them.

    python benchmarks/checksum_cost.py --against PATH_TO_OTHER_TREE --out results/performance/checksums.json

Both trees work on runs of their own: ResNet-18 on 1,200 images of 64 pixels, SCAFFOLD (whose clients keep
state as large as the model), stopped after the first of two rounds. Each measurement is a fresh process, the
trees take turns, and CPU seconds count, imports included; wall seconds are recorded too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from measure import as_process, interleaved, median_ratio, options, report

STARTED = time.perf_counter()
TREE = Path(__file__).resolve().parents[1]
DOMAINS, CLASSES, PER_CLASS, SIDE, PREDICTED = ("a", "b", "held"), ("x", "y"), 200, 64, 100
OPTIONS: dict[str, Any] = {
    **{"hold_out": "held", "rounds": 2, "batch_size": 8, "batches_per_epoch": 1, "workers": 1, "threads": 1},
    **{"method": "scaffold", "model": "resnet18", "weights": "random", "image_size": SIDE, "effort": "none"},
}
PER_CPU, WALL = "CPU seconds", "seconds"


def prepare(place: Path) -> None:
    """Write the images, a run that stopped in its second round, and one that is finished."""
    import numpy as np
    from PIL import Image

    from unseen.callbacks.base import StopTrainingError

    generator = np.random.default_rng(0)
    for folder in (*(place / "images" / d / c for d in DOMAINS for c in CLASSES), place / "new"):
        folder.mkdir(parents=True)
        for number in range(PREDICTED if folder.name == "new" else PER_CLASS):
            pixels = generator.integers(0, 255, (SIDE, SIDE, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    with contextlib.suppress(StopTrainingError):
        go_on(place, "stopped", stop_in_round=2)
    go_on(place, "finished")
    print(json.dumps({}))


def go_on(place: Path, name: str, *, stop_in_round: int = 0) -> None:
    """Train or go on, until the first batch of a round if one is given."""
    from unseen.callbacks.base import Callback, StopTrainingError
    from unseen.config import RunConfig
    from unseen.runner.run import run

    class Stop(Callback):
        round = 0

        def on_train_start(self, *, first_round: int, rounds: int, samples: int) -> None:
            self.round = first_round

        def on_record(self, record: dict[str, Any]) -> None:
            if record["event"] == "evaluation":
                self.round = record["round"] + 1

        def on_samples(self, count: int) -> None:
            if stop_in_round and self.round == stop_in_round:
                raise StopTrainingError("stopped")

    config = RunConfig.from_mapping({"data": str(place / "images"), **OPTIONS})
    run(config, out=place / name, resume=True, report=False, callbacks=[Stop()])


def resume(place: Path) -> None:
    """Time a resume up to its first batch."""
    from unseen.callbacks.base import StopTrainingError

    with contextlib.suppress(StopTrainingError):
        go_on(place, "stopped", stop_in_round=2)


def predict(place: Path) -> None:
    """Time the command that predicts for a folder of images."""
    from unseen.cli.main import app

    command = [
        "predict",
        str(place / "finished"),
        str(place / "new"),
        "--out",
        str(place / "predictions.csv"),
    ]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app(command, standalone_mode=False)


def measure_here(what: str, place: Path) -> None:
    """Do one measurement in this process and print it."""
    os.environ["UNSEEN_CACHE"] = str(place / "cache")
    if what == "prepare":
        prepare(place)
        return
    {"resume": resume, "predict": predict}[what](place)
    taken = {PER_CPU: time.process_time(), WALL: time.perf_counter() - STARTED}
    print(json.dumps({name: round(value, 4) for name, value in taken.items()}))


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] in ("prepare", "resume", "predict"):
        measure_here(sys.argv[1], Path(sys.argv[2]))
        return
    parser = options(__doc__, repetitions=15)
    parser.add_argument("--against", type=Path, required=True, help="another checkout of this repository")
    given = parser.parse_args()
    values, everything = {}, {}
    with tempfile.TemporaryDirectory(prefix="unseen-cost-") as folder:
        trees = {"with": TREE / "src", "without": given.against.resolve() / "src"}
        for name, source in trees.items():
            as_process(__file__, "prepare", Path(folder) / name, source=source)
        for what in ("resume", "predict"):
            measures = {
                name: partial(as_process, __file__, what, Path(folder) / name, source=source)
                for name, source in trees.items()
            }
            taken = interleaved(measures, given.repetitions)
            everything[what] = taken
            for key in (PER_CPU, WALL):
                values[f"{what}: {key}, ratio with / without"] = median_ratio(taken, "with", "without", key)
    report("Cost of checksums", values, everything, given.out)


if __name__ == "__main__":
    main()
