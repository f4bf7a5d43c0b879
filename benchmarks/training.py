"""Benchmark of training through the public API against a bare PyTorch loop over the same steps.

    python benchmarks/training.py --out results/performance/training.json
    python benchmarks/training.py --against PATH_TO_OTHER_TREE

W1: 5 clients of 1000 images 28x28, batch 64, 5 local epochs. W2: 1000 clients of 60 images, 20 sampled per
round, batch 20, 1 local epoch, evaluated every 10 rounds. Records, validation and checkpoints are on. All use
the same network (156 k parameters) and optimizer (SGD, momentum 0.5); images are random: only time counts.

With `--against`, this tree is compared with another checkout instead: each measures with its own copy of this
script and the same interpreter, in turn; the result goes to results/performance/against.json.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from measure import as_process, interleaved, median_ratio, options, report

WORK = {
    "W1": {"batch": 64, "epochs": 5, "clients": 5, "images": 1000, "rounds": 3, "steps": 5 * 5 * 8},
    "W2": {"batch": 20, "epochs": 1, "clients": 20, "images": 60, "rounds": 31, "steps": 20 * 3 * 10},
}
THROUGHPUT = "images per second"
PER_CPU = "images per CPU second"
TREE = Path(__file__).resolve().parents[1]
AGAINST = TREE / "results" / "performance" / "against.json"


def bare(work: str, threads: int) -> None:
    """Time the steps of one client after another, tensors in memory, nothing else."""
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    spec = WORK[work]
    network = nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 100), nn.ReLU(), nn.Linear(100, 10)),
    )
    images, targets = torch.rand(spec["images"], 1, 28, 28), torch.randint(10, (spec["images"],))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.5)

    def go(steps: int) -> int:
        seen = taken = 0
        while taken < steps:
            for rows in torch.randperm(spec["images"]).split(spec["batch"]):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(images[rows]), targets[rows]).backward()
                optimizer.step()
                seen += len(rows)
                taken += 1
        return seen

    go(20)
    started, cpu = time.perf_counter(), time.process_time()
    seen = go(spec["steps"])
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({THROUGHPUT: seen / seconds, PER_CPU: seen / cpu}))


def ours(work: str, workers: int) -> None:
    """Time whole rounds, from the end of the first to the end of the last."""
    started = time.perf_counter()
    from unseen.callbacks.base import Callback
    from unseen.runs.records import Record

    class Clock(Callback):
        def __init__(self) -> None:
            self.marks: list[tuple[float, float, int]] = []
            self.memory = 0.0

        def on_record(self, record: Record) -> None:
            if record["event"] == "round":
                self.marks.append((time.perf_counter(), time.process_time(), record["samples"]))
                if record["round"] == WORK[work]["rounds"]:
                    self.memory = memory_of_all_processes()

    clock = Clock()
    train(work, workers, clock, rounds=WORK[work]["rounds"])
    seen = sum(samples for _, _, samples in clock.marks[1:])
    seconds, cpu = (clock.marks[-1][place] - clock.marks[0][place] for place in (0, 1))
    values: dict[str, Any] = {THROUGHPUT: seen / seconds, "first round after": clock.marks[0][0] - started}
    values["memory in GB"] = clock.memory
    if workers == 1:
        values[PER_CPU] = seen / cpu
    print(json.dumps(values))


def train(work: str, workers: int, callback: Any, *, rounds: int) -> None:
    """Train on random images of the size of the work, in a temporary folder."""
    import numpy as np

    import unseen

    rng = np.random.default_rng(0)
    if work == "W1":
        count, names = int(1000 / 0.9) + 1, [f"d{number}" for number in range(5)]
        shared = {"local_epochs": 5, "validation": 0.1}
    else:
        count, names = int(60_000 / 0.99) + 10, ["all"]
        shared = {"partition": "iid", "clients_per_domain": 1000, "fraction": 0.02, "evaluate_every": 10}
        shared["validation"] = 0.01
    domains = np.repeat([*names, "held"], [count] * len(names) + [1000])
    images = rng.integers(0, 256, (len(domains), 28, 28), dtype=np.uint8)
    data = unseen.from_arrays(images, rng.integers(0, 10, len(domains)), domains)
    with tempfile.TemporaryDirectory() as folder:
        unseen.train(
            data,
            hold_out="held",
            out=Path(folder) / "run",
            model="mnist-cnn",
            rounds=rounds,
            batch_size=WORK[work]["batch"],
            lr=0.01,
            momentum=0.5,
            test=0.0,
            workers=workers,
            threads=1,
            callbacks=callback,
            **shared,
        )


def memory_of_all_processes() -> float:
    """Return the memory of this process and its descendants in GB, shared pages counted once."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    family, size = {os.getpid()}, 0
    while len(family) != size:
        size = len(family)
        family |= {process for process, parent in parents.items() if parent in family}
    total = 0
    for process in family:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 2**20


def compare_with_bare_loop(repetitions: int, out: Path | None) -> None:
    """Measure this tree against the bare loop, with one and with two workers."""
    measures = {
        f"{work} {kind} {workers}": partial(as_process, __file__, kind, work, workers)
        for work in WORK
        for kind, workers in (("bare", 2), ("ours", 2), ("bare", 1), ("ours", 1))
    }
    taken = interleaved(measures, repetitions)
    values = {}
    for work in WORK:
        values[f"{work}: two workers / bare loop of two threads"] = median_ratio(
            taken, f"{work} ours 2", f"{work} bare 2", THROUGHPUT
        )
        values[f"{work}: one worker / bare loop of one thread, per CPU second"] = median_ratio(
            taken, f"{work} ours 1", f"{work} bare 1", PER_CPU
        )
        values[f"{work}: two workers / one worker"] = median_ratio(
            taken, f"{work} ours 2", f"{work} ours 1", THROUGHPUT
        )
    last = sorted(taken["W2 ours 2"], key=lambda one: one["first round after"])
    values["W2: first round after, s (median)"] = last[len(last) // 2]["first round after"]
    values["W2: memory of all processes, GB (largest)"] = max(one["memory in GB"] for one in last)
    report("Training speed", values, taken, out)


def compare_with_tree(other: Path, repetitions: int, out: Path) -> None:
    """Measure this tree (new) against another checkout (old), with two workers."""
    trees = {"new": TREE, "old": other.resolve()}
    measures = {
        f"{work} {name}": partial(
            as_process, tree / "benchmarks" / "training.py", "ours", work, 2, source=tree / "src"
        )
        for work in WORK
        for name, tree in trees.items()
    }
    taken = interleaved(measures, repetitions)
    values: dict[str, Any] = {"repetitions": repetitions}
    for work in WORK:
        new, old = f"{work} new", f"{work} old"
        values[f"{work}: throughput new / old (median)"] = median_ratio(taken, new, old, THROUGHPUT)
        pairs = zip(taken[new], taken[old], strict=True)
        values[f"{work}: throughput new / old"] = [
            mine[THROUGHPUT] / base[THROUGHPUT] for mine, base in pairs
        ]
    report("Training speed of two trees", values, taken, out)


def main() -> None:
    """Measure once (`bare` or `ours`, for the fresh processes), or compare."""
    if len(sys.argv) == 4 and sys.argv[1] in ("bare", "ours"):
        {"bare": bare, "ours": ours}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
        return
    parser = options(__doc__, repetitions=9)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout to compare with")
    given = parser.parse_args()
    if given.against is None:
        compare_with_bare_loop(given.repetitions, given.out)
    else:
        compare_with_tree(given.against, given.repetitions, given.out or AGAINST)


if __name__ == "__main__":
    main()
