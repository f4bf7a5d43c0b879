"""A method's diagnostics over the rounds of a finished bench, one mean per row of its table.

    python benchmarks/diagnostic_curves.py BENCH --names score_extracted,score_generated [--out FILE]

Reads `results.jsonl` and the records of the bench's jobs; trains nothing. Every value is the mean over the
clients of a round, then over the held-out domains and seeds of a row. Rows whose runs lack a diagnostic are
left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.results import read_results
from unseen.fileio import write_json
from unseen.runs.reader import Run, read_run


def read_curve(run: Run, name: str) -> list[float]:
    """Return the mean of a diagnostic over clients, per round; empty if the run has none."""
    found = [record["diagnostics"].get(name) for record in run.rounds]
    values = [list(each.values()) if isinstance(each, dict) else each for each in found]
    return [fmean(each) if isinstance(each, list) else float(each) for each in values if each is not None]


def collect(bench: Path, names: list[str]) -> dict[str, Any]:
    """Return label -> diagnostic -> values over the rounds, and how many runs each mean is over."""
    folder = BenchFolder(bench)
    curves: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for result in read_results(folder.results):
        run = read_run(folder.work / result.job)
        for name in names:
            if curve := read_curve(run, name):
                curves[result.label][name].append(curve)
    return {
        label: {
            "runs": len(next(iter(found.values()))),
            **{
                name: [round(fmean(each), 4) for each in zip(*runs, strict=True)]
                for name, runs in found.items()
            },
        }
        for label, found in curves.items()
    }


def main() -> None:
    """Write the means as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("--names", required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = collect(arguments.bench, arguments.names.split(","))
    out = arguments.out or arguments.bench / "diagnostics.json"
    write_json(out, {"bench": arguments.bench.name, "rows": found})
    print(out)


if __name__ == "__main__":
    main()
