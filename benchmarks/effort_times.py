"""Time from start to result of one command on PACS: `--effort quick`, `--effort standard`, `ridge`.

    UNSEEN_DATA=... python benchmarks/effort_times.py --out results/performance/effort_times.json

`quick` and `standard` start with an empty cache folder, so decoding and caching count; `ridge` is a second
start, on the cache that a first one filled. Wall seconds of whole processes, once each: the result is read
against limits of minutes. `--only` measures some of them and keeps the others of an earlier file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import options, report

HELD_OUT = "sketch"
STARTS: dict[str, tuple[list[str], int]] = {
    "ridge, second start": (["--method", "ridge"], 2),
    "quick, first start": (["--effort", "quick"], 1),
    "standard, first start": ([], 1),
}
"""Options of `unseen train pacs --hold-out sketch`, and which of several equal starts is timed."""


def processor() -> str:
    """Name the processor, where the system tells."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def time_starts(arguments: list[str], starts: int) -> dict[str, Any]:
    """Run the command so many times on one cache folder; return the last one's seconds and accuracy."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for start in range(starts):
            out = place / f"run-{start}"
            command = ["unseen", "train", "pacs", "--hold-out", HELD_OUT, *arguments, "--out", str(out)]
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", *command],
                check=True,
                capture_output=True,
                env={**os.environ, "UNSEEN_CACHE": str(place / "cache")},
            )
            seconds = time.perf_counter() - began
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return {
        "command": " ".join(command[:-2]),
        "seconds": round(seconds, 1),
        "accuracy on the held-out domain": result["metrics"]["target"]["accuracy"],
        "bytes sent in all": result["bytes_up"] + result["bytes_down"],
        "processor": processor(),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Measure and write."""
    parser = options(__doc__, repetitions=1)
    parser.add_argument("--only", nargs="+", choices=[*STARTS], default=[*STARTS])
    given = parser.parse_args()
    taken: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        taken = json.loads(given.out.read_text(encoding="utf-8"))["measurements"]
    for name in given.only:
        taken[name] = time_starts(*STARTS[name])
        print(f"{name}: {taken[name]}", file=sys.stderr, flush=True)
    values = {f"{name}: seconds": measured["seconds"] for name, measured in taken.items()}
    report("PACS, from start to result on this machine", values, taken, given.out)


if __name__ == "__main__":
    main()
