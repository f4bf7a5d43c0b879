"""ECE before and after scaling, and coverage of conformal sets on unseen domains, over finished runs.

    python benchmarks/calibration_study.py BENCH_OR_RUN ... [--out results/calibration] [--promise 0.9]

Reads `calibration.json` and the records of every run below the given folders; trains nothing and needs no
data. Per data set it writes DATA.json: for every run and score the coverage and mean set size on each unseen
domain by

    pooled, worst-source, widened   rules of one run alone, from its sources' validation samples
    unseen                          from its validation domains, where it has any
    across-clean                    from other runs' scores on domains that they held out and that are sources
                                    here, where those runs never saw this run's held-out domain
    across                          the same, where they did train on it (as in an ordinary leave-one-out
                                    grid): a little optimistic, so it is kept apart
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from unseen.calibration import ERROR_EDGES, SCORE_EDGES, coverage_at
from unseen.calibration.conformal import mean_domain_bin, rule_bins
from unseen.calibration.histograms import Counts, from_sparse, upper_edge
from unseen.errors import UsageError
from unseen.fileio import write_json
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run


@dataclass(frozen=True)
class Studied:
    """A finished run with its histograms: (domain, split) -> name -> counts."""

    run: Run
    counts: dict[tuple[str, str], dict[str, Counts]]
    samples: dict[tuple[str, str], int]

    @property
    def sources(self) -> set[str]:
        """The domains whose samples it trained on."""
        return {name for client in self.run.start["clients"] for name in client["domains"]}

    def of_split(self, split: str, name: str) -> dict[str, Counts]:
        """Return one histogram of every domain of a split."""
        return {domain: found[name] for (domain, where), found in self.counts.items() if where == split}


def read_study(folder: Path) -> Studied:
    """Read one run folder."""
    described = json.loads(RunFolder(folder).calibration.read_text(encoding="utf-8"))
    counts, samples = {}, {}
    for entry in described["sets"]:
        key = entry["domain"], entry["split"]
        samples[key] = entry["samples"]
        counts[key] = {
            name: from_sparse(pairs, len(ERROR_EDGES if name == "errors" else SCORE_EDGES) + 1)
            for name, pairs in entry["histograms"].items()
        }
    return Studied(read_run(folder), counts, samples)


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Find finished runs with a calibration, in the given folders or below them."""
    found = {file.parent for place in places for file in place.rglob(RunFolder(place).calibration.name)}
    return sorted(folder for folder in found if RunFolder(folder).result.exists())


def donors(run: Studied, others: Sequence[Studied], *, clean: bool) -> list[tuple[Studied, str]]:
    """List (run, held-out domain) whose scores may calibrate for this run: same data, method and seed.

    clean  whether the other run must not have trained on what this one holds out
    """
    facts = {key: run.run.facts.get(key) for key in ("data", "method", "model", "seed")}
    chosen = []
    for other in others:
        same = all(other.run.facts.get(key) == value for key, value in facts.items())
        saw = bool(other.sources & set(run.run.held_out))
        held = set(other.run.held_out)
        if same and other is not run and saw != clean and held <= run.sources:
            chosen += [(other, domain) for domain in sorted(held)]
    return chosen


def study_run(run: Studied, others: Sequence[Studied], promise: float) -> dict[str, Any]:
    """Measure calibration and coverage on every unseen domain of a run."""
    scores = [score for score in run.run.final["scores"] if score["split"] == "target"]
    kinds = [
        name.removeprefix("true_")
        for name in next(iter(run.counts.values()))
        if name == "errors" or name.startswith("true_")
    ]
    return {
        "folder": run.run.folder.name,
        **{key: run.run.facts.get(key) for key in ("run_id", "method", "model", "seed")},
        "held_out": run.run.held_out,
        "sources": sorted(run.sources),
        "temperature": run.run.final["calibration"]["temperature"],
        "domains": [
            {
                "domain": score["domain"],
                "samples": score["count"],
                "metrics": score["metrics"],
                "calibration": {
                    when: {key: value for key, value in each.items() if key != "bins"}
                    for when, each in score.get("calibration", {}).items()
                },
                "coverage": {
                    kind: study_domain(run, others, score["domain"], kind, promise) for kind in kinds
                },
            }
            for score in scores
        ],
    }


def study_domain(
    run: Studied, others: Sequence[Studied], domain: str, kind: str, promise: float
) -> dict[str, dict[str, float | None]]:
    """Return coverage and size of sets on an unseen domain by every rule that there are scores for."""
    true = kind if kind == "errors" else f"true_{kind}"
    bins = rule_bins(
        run.of_split("validation", true), promise, unseen=run.of_split("validation-domain", true)
    )
    for rule, clean in (("across-clean", True), ("across", False)):
        given = [other.counts[held, "target"][true] for other, held in donors(run, others, clean=clean)]
        if given:
            bins[rule] = mean_domain_bin(given, promise)
    found = run.counts[domain, "target"]
    samples = run.samples[domain, "target"]
    sizes: dict[str, float | None] = {}
    for rule, bin in bins.items():
        if kind == "errors":
            edge = upper_edge(ERROR_EDGES, bin)
            sizes[rule] = None if edge is None else 2 * edge
        else:
            sizes[rule] = float(found[f"all_{kind}"][: bin + 1].sum()) / samples
    return {
        rule: {"coverage": coverage_at(found[true], bin), "size": sizes[rule]} for rule, bin in bins.items()
    }


def summarize(studied: Sequence[dict[str, Any]], promise: float) -> dict[str, Any]:
    """Average over all unseen domains: ECE before and after, coverage, its distance to the promise, size."""
    domains = [domain for run in studied for domain in run["domains"]]
    summary: dict[str, Any] = {"unseen_domains": len(domains), "promise": promise}
    if all(domain["calibration"] for domain in domains):
        summary["ece"] = {
            when: fmean(domain["calibration"][when]["ece"] for domain in domains)
            for when in ("before", "after")
        }
    rows = defaultdict(list)
    for domain in domains:
        for kind, rules in domain["coverage"].items():
            for rule, entry in rules.items():
                rows[kind, rule].append(entry)
    coverage: dict[str, dict[str, Any]] = defaultdict(dict)
    for (kind, rule), entries in rows.items():
        reached = np.array([entry["coverage"] for entry in entries])
        sizes = [entry["size"] for entry in entries]
        coverage[kind][rule] = {
            "domains": len(entries),
            "coverage": float(reached.mean()),
            "lowest": float(reached.min()),
            "mean_distance": float(np.abs(reached - promise).mean()),
            "size": None if None in sizes else fmean(sizes),
        }
    return summary | {"coverage": coverage}


def main() -> None:
    """Write one file per data set, and print its summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="+", type=Path, help="bench folders or run folders")
    parser.add_argument("--out", type=Path, default=Path("results/calibration"))
    parser.add_argument("--promise", type=float, default=0.9)
    options = parser.parse_args()
    folders = find_runs(options.places)
    if not folders:
        raise UsageError(
            f"no finished run with a calibration.json below {', '.join(map(str, options.places))}"
        )
    runs = [read_study(folder) for folder in folders]
    by_data = defaultdict(list)
    for run in runs:
        by_data[str(run.run.facts["data"])].append(run)
    options.out.mkdir(parents=True, exist_ok=True)
    for data, own in by_data.items():
        studied = [study_run(run, own, options.promise) for run in own]
        summary = summarize(studied, options.promise)
        write_json(options.out / f"{data}.json", {"data": data, "summary": summary, "runs": studied})
        print(data, json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
