"""Plot accuracy against epsilon: collect the runs of a bench into a table and a figure.

    unseen bench results/dp-samples/grid.toml --out WORK
    python benchmarks/dp_curve.py WORK --out results/dp-samples

Runs without protection are the upper line; the epsilon of each run is in its result.json.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple


class Point(NamedTuple):
    """All runs of one noise multiplier; `epsilon` is infinite without noise."""

    epsilon: float
    noise: float
    accuracy: float
    error: float
    runs: int


def points(results: Iterable[dict]) -> list[Point]:
    """Group results by their noise; the standard error is over all their runs."""
    groups = defaultdict(list)
    for result in results:
        told = result.get("protection", {})
        groups[round(told.get("noise_multiplier", 0.0), 6)].append(
            (told.get("epsilon", math.inf), result["metrics"]["target"]["accuracy"])
        )
    found = []
    for noise, pairs in groups.items():
        scores = [score for _, score in pairs]
        error = stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
        found.append(Point(max(spent for spent, _ in pairs), noise, mean(scores), error, len(scores)))
    return sorted(found, reverse=True)


def table(found: list[Point]) -> str:
    lines = ["| epsilon | noise multiplier | accuracy on the held-out angle | runs |", "|---|---|---|---|"]
    for point in found:
        epsilon = "no noise" if math.isinf(point.epsilon) else f"{point.epsilon:.2f}"
        error = "" if math.isnan(point.error) else f" ± {100 * point.error:.1f}"
        noise = f"{point.noise:.3f}" if point.noise else ""
        lines.append(f"| {epsilon} | {noise} | {100 * point.accuracy:.1f} %{error} | {point.runs} |")
    return "\n".join(lines) + "\n"


def draw(found: list[Point], path: Path) -> None:
    import altair as alt

    rows = [
        {"epsilon": point.epsilon, "accuracy": point.accuracy}
        for point in found
        if math.isfinite(point.epsilon)
    ]
    x = alt.X("epsilon:Q", scale=alt.Scale(type="log"), title="epsilon (smaller hides more)")
    y = alt.Y("accuracy:Q", axis=alt.Axis(format="%"), title="accuracy on the held-out angle")
    curve = alt.Chart(alt.Data(values=rows)).mark_line(point=True).encode(x=x, y=y)
    best = [{"accuracy": point.accuracy} for point in found if math.isinf(point.epsilon)]
    line = alt.Chart(alt.Data(values=best)).mark_rule(strokeDash=[4, 4]).encode(y="accuracy:Q")
    (curve + line).properties(width=480, height=300).save(path, scale_factor=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("work", type=Path, help="folder with finished runs anywhere below it")
    parser.add_argument("--out", type=Path, required=True, help="where curve.md and curve.png go")
    given = parser.parse_args()
    results = [json.loads(path.read_text(encoding="utf-8")) for path in given.work.rglob("result.json")]
    if not results:
        parser.error(f"no result.json below {given.work}")
    found = points(results)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "curve.md").write_text(table(found), encoding="utf-8")
    draw(found, given.out / "curve.png")
    print(table(found))


if __name__ == "__main__":
    main()
