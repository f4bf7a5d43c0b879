"""Benchmark of a grid of eight small jobs, two workers against one: the whole command, from start to tables.

python benchmarks/bench_scaling.py --out results/performance/bench_scaling.json

Needs two quiet cores; at most 0.65 of the time is expected.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

from measure import interleaved, median_ratio, options, report

METHODS, SEEDS = "fedavg,fedprox", 4


def bench(workers: int, rounds: int) -> dict[str, Any]:
    """Run the grid in an empty folder."""
    grid = ["rotated-digits", "--methods", METHODS, "--hold-out", "75", "--seeds", SEEDS, "--rounds", rounds]
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "unseen", "bench", *grid, "--workers", workers, "--out", f"{folder}/bench", "--json"]
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - started
    found = json.loads(done.stdout)
    if len(found["results"]) != 8 or found["failed"]:
        raise SystemExit(f"the bench did not finish: {found['failed']}")
    return {"seconds": seconds, "in_jobs": sum(result["seconds"] for result in found["results"])}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of each job")
    given = parser.parse_args()
    measures = {f"{workers} workers": partial(bench, workers, given.rounds) for workers in (1, 2)}
    taken = interleaved(measures, given.repetitions)
    ratio = median_ratio(taken, "2 workers", "1 workers", "seconds")
    values = {"two workers / one worker, whole command (at most 0.65)": ratio}
    report("A grid of eight small jobs", values, taken, given.out)


if __name__ == "__main__":
    main()
