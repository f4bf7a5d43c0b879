"""Benchmark of encrypted rounds: seconds and bytes of every step, and the error against plain arithmetic.

    python benchmarks/encryption.py --out encryption.json

One core per process. Every client's update is encrypted one after another, as on one machine; "client" is the
time of one. The server's steps run in a separate process, and include sending the bytes there. A method
that takes a mean (FedAvg) needs the weighted sum alone, gradient surgery (PPDG) also the Gram matrix.
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
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from unseen.privacy.he.aggregate import decode_gram, rescale_factors
from unseen.privacy.he.ciphertext_packing import count_rows, find_magnitude, from_rows, to_rows
from unseen.privacy.he.ckks import DEGREE, PRIMES, KeyHolder
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess

SPREAD = 1e-3
"""Number of scalars in an update."""
R = TypeVar("R")


class Watch:
    """Seconds per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, step: str, do: Callable[[], R]) -> R:
        """Run a step and record how long it takes."""
        started = time.perf_counter()
        result = do()
        self.seconds[step] = time.perf_counter() - started
        return result


def one_round(numbers: int, clients: int, process: ServerProcess) -> dict[str, Any]:
    generator, watch = np.random.default_rng(numbers), Watch()
    common = generator.normal(size=numbers)
    updates = [SPREAD * (generator.normal(size=numbers) + 0.2 * common) for _ in range(clients)]
    holder = watch.time("make keys", lambda: KeyHolder.make(products=True))
    public = holder.public(products=True)
    watch.time("open public context", lambda: process.run(EncryptedServer.open, public))
    names = [str(number) for number in range(clients)]
    magnitudes = {name: find_magnitude(update) for name, update in zip(names, updates, strict=True)}
    sent: dict[str, list[bytes]] = {}
    for name, update in zip(names, updates, strict=True):
        rows = to_rows(update, magnitudes[name])
        sent[name] = watch.time("client encrypts", lambda rows=rows: [holder.encrypt(row) for row in rows])
        watch.time("server takes one", lambda name=name: process.run(EncryptedServer.take, name, sent[name]))
    count = count_rows(numbers)
    products = watch.time("server: Gram matrix", lambda: process.run(EncryptedServer.gram, count))
    entries = watch.time(
        "key holder: Gram matrix", lambda: np.array([holder.decrypt(part)[0] for part in products])
    )
    found = decode_gram(
        entries, clients=clients, rows=count, magnitudes=torch.tensor(list(magnitudes.values()))
    ).numpy()
    part = rescale_factors(dict.fromkeys(names, 1 / clients), magnitudes)
    summed = watch.time(
        "server: weighted sum",
        lambda: process.run(EncryptedServer.weighted_sum, range(count), part.of_clients),
    )
    decrypted = watch.time("key holder: sum", lambda: [holder.decrypt(row) for row in summed])
    mean = from_rows(decrypted, numbers=numbers, magnitude=part.magnitude, leading=part.leading)
    process.run(EncryptedServer.forget)
    return {
        "seconds": watch.seconds,
        "bytes": {
            "plain update": 4 * numbers,
            "encrypted update": sum(map(len, sent["0"])),
            "encrypted Gram matrix": sum(map(len, products)),
            "encrypted sum": sum(map(len, summed)),
            "public context, once": len(public),
            "public context without products, once": len(holder.public(products=False)),
            "secret key, once a client": len(holder.secret),
        },
        "relative_error": {
            "mean": _relative(mean, np.mean(updates, axis=0)),
            "gram": _relative(found, np.array(updates) @ np.array(updates).T),
        },
    }


def _relative(found: Any, expected: Any) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median seconds and the largest errors; bytes are those of the first repetition."""
    return {
        "seconds": {
            step: round(statistics.median(run["seconds"][step] for run in runs), 4)
            for step in runs[0]["seconds"]
        },
        "bytes": runs[0]["bytes"],
        "relative_error": {
            what: max(run["relative_error"][what] for run in runs) for what in runs[0]["relative_error"]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--numbers", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("encryption.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    process, sizes = ServerProcess(), {}
    for numbers in asked.numbers:
        runs = [one_round(numbers, asked.clients, process) for _ in range(asked.repetitions)]
        sizes[str(numbers)] = merged(runs)
        print(numbers, json.dumps(sizes[str(numbers)], indent=1), flush=True)
    facts = {
        "clients": asked.clients,
        "repetitions": asked.repetitions,
        "degree": DEGREE,
        "primes": list(PRIMES),
        "machine": platform.processor() or platform.machine(),
        "load": os.getloadavg(),
        "sizes": sizes,
    }
    asked.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
