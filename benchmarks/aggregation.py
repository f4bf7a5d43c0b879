"""Benchmark of the server's aggregation against the machine's limit: the time to read all client states once.

    python benchmarks/aggregation.py --out aggregation.json

One thread; every repetition runs all kernels one after another, so that other load on the machine affects
them equally. Ratios are medians over repetitions. Extra memory is the peak while a kernel runs minus the
memory in use before, its result included. Targets are for the full size; literal forms are timed with ten
clients.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

from unseen.aggregation import (
    align_conflicts,
    combine_clients,
    draw_visit_order,
    gram,
    layer_distances,
    layerwise_weighted_sum,
    normalize_weights,
    project_conflicts,
    sign_agreement,
    weighted_mean,
)
from unseen.models import InputSpec, Kind, Layout, build_model

SPREAD = 1e-4
"""How much clients differ, as a part of their weights: where cancellation would show."""
TARGETS = {"mean": 1.2, "csac weights": 6.0, "ppdg": 12.0}
MEGABYTE = 1e6
MEMORY_TARGET = 200.0
ACCURACY_TARGET = 1e-4
READING = "read once"

Kernels = dict[str, Callable[[], object]]


def client_states(clients: int, weights: Tensor) -> Tensor:
    """Generate states that differ from the global weights by SPREAD."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.empty(clients, len(weights))
    for row in rows:
        torch.randn(len(weights), generator=generator, out=row)
        row.mul_(SPREAD).add_(1).mul_(weights)
    return rows


def kernels(rows: Tensor, weights: Tensor, layout: Layout) -> Kernels:
    """Return the kernels as methods call them."""
    trained, uniform = layout.extent(Kind.PARAMETER), torch.ones(len(rows), dtype=torch.float64)
    order = draw_visit_order([str(number) for number in range(len(rows))], torch.Generator().manual_seed(0))
    shares = torch.full((len(layer_weights(rows[:1], layout)), len(rows)), 1 / len(rows), dtype=torch.float64)

    def ppdg() -> Tensor:
        found = align_conflicts(gram(rows, weights, trained), strength=0.1, order=order)
        return combine_clients(rows, weights, found.coefficients.mean(dim=0), layout=layout)

    def pcgrad() -> Tensor:
        found = project_conflicts(gram(rows, weights, trained), order=order)
        return combine_clients(rows, weights, found.coefficients.mean(dim=0), layout=layout)

    return {
        READING: rows.sum,
        "mean": lambda: weighted_mean(rows, uniform, layout=layout),
        "csac weights": lambda: layer_weights(rows, layout),
        "csac merge": lambda: layerwise_weighted_sum(rows, shares, layout=layout),
        "ppdg": ppdg,
        "pcgrad": pcgrad,
        "sign agreement": lambda: sign_agreement(rows, weights, trained),
    }


def layer_weights(rows: Tensor, layout: Layout) -> Tensor:
    """Compute CSAC's divergence weights."""
    return torch.stack([normalize_weights(values) for values in layer_distances(rows, layout).values])


def literal_forms(rows: Tensor, weights: Tensor, layout: Layout) -> Kernels:
    """Return literal implementations, as papers and most code bases write them."""
    order = draw_visit_order([str(number) for number in range(len(rows))], torch.Generator().manual_seed(0))
    trained = layout.extent(Kind.PARAMETER)

    def mean() -> Tensor:
        return torch.cat([sum(row[entry.slice] / len(rows) for row in rows) for entry in layout.entries])

    def csac() -> list[Tensor]:
        found = []
        for entry in layout.entries:
            average = torch.stack([row[entry.slice] for row in rows]).mean(dim=0)
            distances = torch.stack([(row[entry.slice] - average).norm() for row in rows])
            found.append(distances / distances.sum())
        return found

    def ppdg() -> Tensor:
        moves = [row[trained] - weights[trained] for row in rows]
        for i in order.clients:
            for j in order.partners[i]:
                if i != j and moves[i] @ moves[j] < 0:
                    moves[i] = moves[i] - 0.2 * (moves[i] - moves[j])
        return weights[trained] + torch.stack(moves).mean(dim=0)

    return {"mean, literal": mean, "csac weights, literal": csac, "ppdg, literal": ppdg}


def timed(work: Kernels, repetitions: int) -> dict[str, list[float]]:
    """Time every kernel in every repetition, interleaved; a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for repetition in range(repetitions + 1):
        for name, call in work.items():
            started = time.perf_counter()
            call()
            if repetition:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def extra_memory(call: Callable[[], object]) -> float | None:
    """Measure the peak of additional memory in MB while `call` runs; None where it cannot be measured."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        call()
        return (_status("VmHWM") - before) / MEGABYTE
    except OSError:
        return None


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def weight_error(rows: Tensor, layout: Layout, *, largest: int = 300_000) -> float:
    """Return the largest relative error of CSAC's weights against float64, over layers of moderate size."""
    found, worst = layer_distances(rows, layout), 0.0
    for layer, values in zip(found.layers, found.values, strict=True):
        place = layer.slices[0]
        if place.stop - place.start <= largest:
            part = rows[:, place].double()
            right = normalize_weights((part - part.mean(dim=0)).norm(dim=1))
            worst = max(worst, float(((normalize_weights(values) - right).abs() / right).max()))
    return worst


def measure(
    clients: int, weights: Tensor, layout: Layout, *, repetitions: int, literal: bool
) -> dict[str, Any]:
    """Measure everything for one number of clients."""
    rows = client_states(clients, weights)
    work = kernels(rows, weights, layout)
    memory = {name: extra_memory(call) for name, call in work.items()}
    if literal:
        work |= literal_forms(rows, weights, layout)
    seconds = timed(work, repetitions)
    reading = seconds[READING]
    return {
        "clients": clients,
        "kernels": {
            name: {
                "seconds": statistics.median(own),
                "ratio": statistics.median(mine / limit for mine, limit in zip(own, reading, strict=True)),
                "target_ratio": None if literal else TARGETS.get(name),
                "extra_megabytes": memory.get(name),
            }
            for name, own in seconds.items()
        },
        "csac_weights_relative_error": weight_error(rows, layout),
    }


def show(result: dict[str, Any], size: int) -> bool:
    """Print one table; return whether all targets are met."""
    met = result["csac_weights_relative_error"] <= ACCURACY_TARGET
    print(f"\n{result['clients']} clients, {size / 1e6:.1f} M values each, one thread")
    print(f"{'':24}{'seconds':>9}{'x limit':>9}{'target':>8}{'extra MB':>10}")
    for name, row in result["kernels"].items():
        target, memory = row["target_ratio"], row["extra_megabytes"]
        met &= (target is None or row["ratio"] <= target) and (memory is None or memory < MEMORY_TARGET)
        print(
            f"{name:24}{row['seconds']:9.3f}{row['ratio']:9.2f}{target or '':>8}"
            f"{'' if memory is None else f'{memory:.0f}':>10}"
        )
    print(
        f"CSAC's weights where clients differ by {SPREAD:.2%}: "
        f"relative error {result['csac_weights_relative_error']:.1e}"
    )
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    network = build_model(options.model, InputSpec((3, 64, 64), 7), seed=0)
    layout = Layout.of(network)
    weights = torch.cat([value.detach().flatten().float() for value in network.parameters()])
    weights = torch.cat([weights, torch.ones(layout.size - len(weights))])
    literal = measure(10, weights, layout, repetitions=options.repetitions, literal=True)
    full = measure(options.clients, weights, layout, repetitions=options.repetitions, literal=False)
    met = [show(result, layout.size) for result in (literal, full)][-1]
    print(f"targets at {options.clients} clients {'met' if met else 'MISSED'}")
    if options.out:
        facts = {
            "model": options.model,
            "size": layout.size,
            "repetitions": options.repetitions,
            "threads": 1,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "targets_met": met,
            "results": [literal, full],
        }
        options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
