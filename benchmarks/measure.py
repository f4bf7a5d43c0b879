"""Shared parts of the benchmarks: fresh processes, interleaved repetitions, median ratios, JSON results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def as_process(script: str | Path, *arguments: object, source: Path | None = None) -> dict[str, Any]:
    """Run one measurement in a fresh process that prints a JSON object as its last line.

    source  the folder from which the process imports `unseen`, if not the one of this process
    """
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=None if source is None else {**os.environ, "PYTHONPATH": str(source)},
    )
    if done.returncode:
        raise SystemExit(f"{arguments} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def interleaved(
    measures: dict[str, Callable[[], dict[str, Any]]], repetitions: int
) -> dict[str, list[dict[str, Any]]]:
    """Take all measures in turn, several times, so that a slow spell of the machine affects all of them."""
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
    for _ in range(repetitions):
        for name, measure in measures.items():
            taken[name].append(measure())
            print(f"{name}: {taken[name][-1]}", file=sys.stderr, flush=True)
    return taken


def median_ratio(taken: dict[str, list[dict[str, Any]]], mine: str, base: str, key: str) -> float:
    """Return the median over repetitions of the ratio of two measures taken one after the other."""
    pairs = zip(taken[mine], taken[base], strict=True)
    return float(statistics.median(one[key] / other[key] for one, other in pairs))


def options(description: str | None, *, repetitions: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--repetitions", type=int, default=repetitions)
    return parser


def report(title: str, values: dict[str, Any], taken: Any, out: Path | None) -> None:
    """Print the main values and write everything that was measured."""
    print(f"\n{title}")
    for name, value in values.items():
        print(f"  {name:<58} {value:.3g}" if isinstance(value, float) else f"  {name:<58} {value}")
    if out is not None:
        whole = {
            "title": title,
            "command": " ".join(["python", *sys.argv]),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
            "values": values,
            "measurements": taken,
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(whole, indent=1) + "\n")
