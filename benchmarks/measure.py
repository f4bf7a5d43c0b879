"""What the benchmarks share: work as processes of their own, interleaved, medians of ratios, JSON results."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def as_process(script: str, *arguments: object) -> dict[str, Any]:
    """Run one measurement in a fresh process that prints a JSON object as its last line."""
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{arguments} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def interleaved(
    measures: dict[str, Callable[[], dict[str, Any]]], repetitions: int
) -> dict[str, list[dict[str, Any]]]:
    """Take every measure in turn, several times: what slows the machine for a while slows all of them."""
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
    for _ in range(repetitions):
        for name, measure in measures.items():
            taken[name].append(measure())
            print(f"{name}: {taken[name][-1]}", file=sys.stderr, flush=True)
    return taken


def median_ratio(taken: dict[str, list[dict[str, Any]]], mine: str, base: str, key: str) -> float:
    """Median over repetitions of the ratio of two measures taken side by side."""
    pairs = zip(taken[mine], taken[base], strict=True)
    return statistics.median(one[key] / other[key] for one, other in pairs)


def options(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument("--repetitions", type=int, default=5)
    return parser


def report(title: str, values: dict[str, Any], taken: Any, out: Path | None) -> None:
    """Print the figures that matter and keep everything that was measured."""
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
