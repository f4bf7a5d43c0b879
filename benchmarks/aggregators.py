"""Benchmark of the aggregators: seconds to merge clients' states, relative to the mean, interleaved.

python benchmarks/aggregators.py --out results/performance/aggregators.json

One thread. The states are those of a ResNet-18 (11.2 million numbers) unless --size says otherwise.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from measure import interleaved, median_ratio, options, report

from unseen.aggregation import AGGREGATORS, make_aggregator

SIZE = 11_181_642


def merge(name: str, rows: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    aggregator = make_aggregator(name)
    started = time.perf_counter()
    aggregator.combine(rows, reference)
    return {"seconds": time.perf_counter() - started}


def main() -> None:
    parser = options(__doc__, repetitions=3)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 10])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    values: dict[str, Any] = {}
    every: dict[str, Any] = {}
    for clients in chosen.clients:
        reference = torch.randn(chosen.size, generator=torch.Generator().manual_seed(0))
        rows = reference + 0.01 * torch.randn(clients, chosen.size)
        names = ["mean", *sorted(set(AGGREGATORS) - {"mean"})]
        taken = interleaved(
            {name: partial(merge, name, rows, reference) for name in names}, chosen.repetitions
        )
        every[str(clients)] = taken
        for name in names[1:]:
            values[f"{name}, {clients} clients, times the mean"] = median_ratio(
                taken, name, "mean", "seconds"
            )
    report(f"Time of aggregators on {chosen.size} numbers", values, every, chosen.out)


if __name__ == "__main__":
    main()
