"""Benchmark of a round of every method against a round of FedAvg: seconds, and bytes sent in both directions.

    python benchmarks/method_costs.py                       all methods
    python benchmarks/method_costs.py --methods csac,ppdg   only these; earlier values of others are kept

The result is the file in the package that `unseen list methods` shows. Every method runs with its defaults
on the same small job, in a fresh process, right after FedAvg; ratios are medians over repetitions
of such pairs. A round's cost is the median over the rounds after the first, which some spend on preparation.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from measure import as_process, interleaved, median_ratio, options

from unseen.methods import METHODS
from unseen.methods.method_costs import COSTS

BASE = "fedavg"
JOB = {"data": "rotated-digits", "image_size": 28, "model": "mnist-cnn", "local_epochs": 1, "batch_size": 32}
ROUNDS = 4
JOB_IN_WORDS = "rotated-digits at 28 pixels, five clients, CNN of 156 k parameters, one local epoch, one core"


def one(method: str) -> None:
    """Run the job with a method, and print the cost of its later rounds."""
    import unseen

    compares = METHODS[method].domains_per_client > 1
    clients = {"partition": "mixed", "heterogeneity": 0.0} if compares else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        unseen.train(
            **JOB,
            **clients,
            hold_out="75",
            method=method,
            rounds=ROUNDS,
            evaluate_every=ROUNDS,
            workers=1,
            threads=1,
            out=out,
        )
        lines = (out / "records.jsonl").read_text(encoding="utf-8").splitlines()
    later = [record for record in map(json.loads, lines) if record["event"] == "round"][1:]
    print(
        json.dumps(
            {
                "seconds": statistics.median(record["seconds"] for record in later),
                "bytes": statistics.median(record["bytes_up"] + record["bytes_down"] for record in later),
            }
        )
    )


def measured(methods: list[str], repetitions: int) -> dict[str, dict[str, Any]]:
    """Measure the costs of methods, each in turn with FedAvg."""
    base_of = {method: BASE if method == BASE else f"{BASE} before {method}" for method in methods}
    measures = {}
    for method, base in base_of.items():
        measures[base] = lambda: as_process(__file__, "one", BASE)
        measures[method] = lambda method=method: as_process(__file__, "one", method)
    taken = interleaved(measures, repetitions)
    costs = {}
    for method, base in base_of.items():
        sends_rounds = METHODS[method].topology != "pooled"
        costs[method] = {
            "seconds": round(statistics.median(each["seconds"] for each in taken[method]), 4),
            "seconds_ratio": round(median_ratio(taken, method, base, "seconds"), 3),
            "bytes": int(taken[method][0]["bytes"]) if sends_rounds else None,
            "bytes_ratio": round(median_ratio(taken, method, base, "bytes"), 3) if sends_rounds else None,
        }
    return costs


def write(costs: dict[str, dict[str, Any]], *, repetitions: int, out: Path) -> None:
    """Write the costs into the file, and keep those of methods that were not measured."""
    known = json.loads(out.read_text(encoding="utf-8"))["methods"] if out.is_file() else {}
    kept = {name: cost for name, cost in (known | costs).items() if name in METHODS}
    whole = {
        "job": JOB_IN_WORDS,
        "command": " ".join(["python", *sys.argv]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "repetitions": repetitions,
        "methods": dict(sorted(kept.items())),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "one":
        one(sys.argv[2])
        return
    parser = options(__doc__)
    parser.set_defaults(out=COSTS)
    parser.add_argument("--methods", help="names with commas between them; else all that need no CLIP")
    given = parser.parse_args()
    needing_none = [name for name in METHODS if not METHODS[name].needs_texts]
    methods = given.methods.split(",") if given.methods else needing_none
    for method in methods:
        METHODS[method]
    costs = measured(methods, given.repetitions)
    write(costs, repetitions=given.repetitions, out=given.out)
    for method, cost in costs.items():
        bytes_ratio = "-" if cost["bytes_ratio"] is None else f"{cost['bytes_ratio']:.2f}"
        print(f"{method:<14} seconds {cost['seconds_ratio']:.2f}   bytes {bytes_ratio}")


if __name__ == "__main__":
    main()
