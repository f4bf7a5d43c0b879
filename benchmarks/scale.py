"""Benchmark of start-up and memory: the command line, many rounds, very many clients.

python benchmarks/scale.py --out results/performance/scale.json
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import as_process, interleaved, options, report

from training import memory_of_all_processes

UNSEEN = [sys.executable, "-m", "unseen"]


def help_page() -> dict[str, Any]:
    started = time.perf_counter()
    subprocess.run([*UNSEEN, "--help"], check=True, capture_output=True)
    return {"seconds": time.perf_counter() - started}


def first_round() -> dict[str, Any]:
    """Time from the command to the first finished round on rotated-digits."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [
            *UNSEEN,
            "train",
            "rotated-digits",
            "--hold-out",
            "75",
            "--rounds",
            "1",
            "--out",
            f"{folder}/r",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        records = Path(folder) / "r/records.jsonl"
        while not (records.exists() and '"event": "round"' in records.read_text()):
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        process.wait()
    return {"seconds": seconds}


def train(clients: int, rounds: int) -> None:
    """Run rounds with few clients sampled from many; measure memory after an early and the last round."""
    started = time.perf_counter()
    import numpy as np

    import unseen
    from unseen.callbacks.base import Callback
    from unseen.runs.records import Record

    sampled, each = (20, 60) if clients <= 1000 else (50, 12)
    rng = np.random.default_rng(0)
    domains = np.repeat(["all", "held"], [clients * each, 500])
    side = 28 if clients <= 1000 else 8
    images = rng.integers(0, 256, (len(domains), side, side), dtype=np.uint8)
    data = unseen.from_arrays(images, rng.integers(0, 10, len(domains)), domains)
    seen: dict[str, float] = {}

    class Watch(Callback):
        def on_train_start(self, **_: int) -> None:
            seen["start-up"] = time.perf_counter() - started

        def on_record(self, record: Record) -> None:
            if record["event"] == "round" and record["round"] in (max(rounds // 10, 1), rounds):
                seen["early" if record["round"] < rounds else "late"] = memory_of_all_processes()

    with tempfile.TemporaryDirectory() as folder:
        unseen.train(
            data,
            hold_out="held",
            out=Path(folder) / "run",
            partition="iid",
            clients_per_domain=clients,
            fraction=sampled / clients,
            rounds=rounds,
            evaluate_every=rounds,
            batch_size=8,
            validation=0.0 if clients > 1000 else 0.01,
            test=0.0,
            selection="last",
            workers=2,
            threads=1,
            callbacks=Watch(),
        )
    print(json.dumps(seen))


def main() -> None:
    if len(sys.argv) == 4 and sys.argv[1] == "train":
        train(int(sys.argv[2]), int(sys.argv[3]))
        return
    given = options(__doc__).parse_args()
    taken = interleaved({"help": help_page, "first round": first_round}, given.repetitions)
    long = as_process(__file__, "train", 1000, 200)
    many = as_process(__file__, "train", 100_000, 3)
    values = {
        "unseen --help, s": statistics.median(one["seconds"] for one in taken["help"]),
        "unseen train rotated-digits: first round after, s": statistics.median(
            one["seconds"] for one in taken["first round"]
        ),
        "200 rounds of W2: growth of memory from round 20 on": long["late"] / long["early"] - 1,
        "100,000 registered clients: start-up, s": many["start-up"],
        "100,000 registered clients: memory, GB": many["late"],
    }
    report("Start-up and memory", values, {**taken, "200 rounds": long, "100,000 clients": many}, given.out)


if __name__ == "__main__":
    main()
