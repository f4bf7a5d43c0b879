"""Benchmark of ridge under encryption: seconds and bytes of every step, and the error of sums and head.

    python benchmarks/encrypted_ridge.py --out encrypted_ridge.json

Clients have random features of the size of a network's (correlated, not negative, as after a ReLU), whose
class depends on them. Every client's sums over training and validation samples are encrypted one after
another, as on one machine; "a client encrypts" is the mean of one. The server adds up in a separate process.
One core per process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.methods import make_method
from unseen.methods.closed_form.feature_sums import SUMS, VALIDATION_SUMS, FeatureBatch, FeatureSums
from unseen.methods.closed_form.ridge import Ridge
from unseen.privacy import ReceivedUpdate
from unseen.privacy.he.ckks import KeyHolder
from unseen.privacy.he.encrypted_sums import (
    ADDED,
    ADDENDS,
    added_request,
    check_addends,
    count_addends,
    decrypt_added,
    encrypt_extras,
    find_contents,
    unpack_added,
)
from unseen.privacy.he.server_process import EncryptedServer, ServerProcess
from unseen.training import Update

R = TypeVar("R")


def draw_client(
    generator: torch.Generator, mixing: Tensor, truth: Tensor, samples: int
) -> tuple[Tensor, Tensor]:
    """Draw features and the classes that a noisy linear map gives them."""
    features = (torch.randn(samples, len(mixing), generator=generator, dtype=torch.float64) @ mixing).relu()
    scores = features @ truth
    noise = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    return features, (scores + scores.std() * noise).argmax(1)


def sum_up(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sum up a client's samples as `ridge` does."""
    weights = 1 / labels.bincount(minlength=classes).double()[labels]
    sums = FeatureSums.zeros(features.shape[1], classes)
    sums.add(FeatureBatch(features, 8 * F.one_hot(labels, classes).double(), weights))
    return sums.pack()


def timed(seconds: dict[str, float], step: str, do: Callable[[], R]) -> R:
    """Run a step and record how long it takes; of a step that is repeated, the mean is computed later."""
    started = time.perf_counter()
    result = do()
    seconds[step] = seconds.get(step, 0.0) + time.perf_counter() - started
    return result


def measure(
    features: int, classes: int, clients: int, samples: int, process: ServerProcess
) -> dict[str, Any]:
    """Run one encrypted round of ridge and compare it with the plain one."""
    generator, seconds = torch.Generator().manual_seed(features), dict[str, float]()
    mixing = torch.randn(features, features, generator=generator, dtype=torch.float64) / features**0.5
    mixing = mixing * torch.linspace(2, 0.05, features, dtype=torch.float64)
    truth = torch.randn(features, classes, generator=generator, dtype=torch.float64)
    extras = [
        {
            kind: sum_up(*draw_client(generator, mixing, truth, number), classes)
            for kind, number in ((SUMS, samples), (VALIDATION_SUMS, samples // 10))
        }
        for _ in range(clients)
    ]
    ridge = make_method("ridge")
    assert isinstance(ridge, Ridge)
    method = ridge.traits
    holder = timed(seconds, "make a key", lambda: KeyHolder.make(products=False))
    process.run(EncryptedServer.open, holder.public(products=False))
    received = []
    for number, own in enumerate(extras):
        update = Update(torch.zeros(1), samples=samples, steps=0, seen=samples, loss=0.0, extras=own)
        sent = timed(
            seconds,
            "a client encrypts",
            lambda update=update: encrypt_extras(update, holder, method=method, clients=clients),
        )
        received.append(ReceivedUpdate(str(number), replace(update, extras=sent)))
    contents = find_contents(received)
    for client, update in received:
        parts = check_addends(client, update.extras, contents)
        timed(
            seconds,
            "server takes all",
            lambda client=client, parts=parts: process.run(EncryptedServer.take, client, parts),
        )
    rows = range(count_addends(contents))
    added = timed(seconds, "server adds up", lambda: process.run(EncryptedServer.plain_sum, rows))
    request = added_request(added, contents, clients=clients)
    answer = timed(seconds, "a key holder decrypts", lambda: decrypt_added(request, holder))
    opened = unpack_added(answer[ADDED], contents, method=method, weight=1.0)
    seconds["a client encrypts"] /= clients
    plain = {kind: torch.stack([own[kind] for own in extras]).sum(0) for kind in opened}
    mine, theirs = (ridge.solve([sums], outputs=classes) for sums in (opened, plain))
    new, _ = draw_client(generator, mixing, truth, 10_000)
    choices = [(new @ solved.head.weight.T + solved.head.bias).argmax(1) for solved in (mine, theirs)]
    return {
        "seconds": {step: round(value, 4) for step, value in seconds.items()},
        "ciphertexts": len(rows),
        "bytes": {
            "plain sums of a client": sum(value.nbytes for value in extras[0].values()),
            "encrypted sums of a client": received[0].update.extras[ADDENDS].nbytes,
            "encrypted sum, to a key holder": request[ADDENDS].nbytes,
        },
        "error": {
            "sums, absolute": max(float((opened[kind] - plain[kind]).abs().max()) for kind in plain),
            "sums, relative": max(relative(opened[kind], plain[kind]) for kind in plain),
            "head, relative": relative(mine.head.weight, theirs.head.weight),
            "predictions that differ": float((choices[0] != choices[1]).double().mean()),
            "same strength": mine.diagnostics["strength"] == theirs.diagnostics["strength"],
        },
    }


def relative(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference divided by that of what is expected."""
    return float((found - expected).norm() / expected.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--features", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--classes", type=int, default=7)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path("encrypted_ridge.json"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    process, sizes = ServerProcess(), {}
    for features in asked.features:
        found = measure(features, asked.classes, asked.clients, asked.samples, process)
        sizes[str(features)] = found
        print(features, json.dumps(found, indent=1), flush=True)
    facts = {
        "clients": asked.clients,
        "classes": asked.classes,
        "samples_per_client": asked.samples,
        "machine": platform.processor() or platform.machine(),
        "load": os.getloadavg(),
        "features": sizes,
    }
    asked.out.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
