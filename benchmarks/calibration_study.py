"""ECE before and after scaling, and coverage of conformal sets on unseen domains, over finished runs.

    python benchmarks/calibration_study.py BENCH_OR_RUN ... [--out results/calibration] [--promise 0.9]

Reads `calibration.json` and the records of every run below the given folders; trains nothing and needs no
data. A run that holds out one domain is measured there; one that holds out more only helps others. Per data
set it writes DATA.json, and for all of them table.md: ECE before and after, and for every score the coverage
and mean set size on the unseen domain by

    pooled, worst-source, widened  rules of one run alone, from its sources' validation samples; `pooled` is
                                   ordinary split conformal prediction
    left-out                       what `unseen calibrate` gives: from other runs' scores on domains that they
                                   held out and that are sources here; those runs never saw this run's
                                   held-out domain either
    across                         the same from runs that did train on it, as in an ordinary leave-one-out
                                   grid: a user with a really new site has none of them, so it is kept apart
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
from unseen.calibration.conformal import DEFAULT_SCORE, mean_domain_bin, rule_bins
from unseen.calibration.histograms import Counts, from_sparse, upper_edge
from unseen.errors import UsageError
from unseen.fileio import write_json, write_text
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
    """Find finished runs with a calibration, in the given folders or below them; each once."""
    found = {file.parent for place in places for file in place.rglob(RunFolder(place).calibration.name)}
    finished = sorted(folder for folder in found if RunFolder(folder).result.exists())
    by_id = {json.loads(RunFolder(folder).result.read_text("utf-8"))["run_id"]: folder for folder in finished}
    return sorted(by_id.values())


def donors(run: Studied, others: Sequence[Studied], *, clean: bool) -> list[tuple[Studied, str]]:
    """List (run, held-out domain) whose scores may calibrate for this run: same data, method and seed.

    clean  those that did not train on what this one holds out, or those that did
    """
    facts = {key: run.run.facts.get(key) for key in ("data", "method", "model", "seed")}
    chosen = []
    for other in others:
        same = all(other.run.facts.get(key) == value for key, value in facts.items())
        saw = bool(other.sources & set(run.run.held_out))
        strange = other.sources - run.sources - set(run.run.held_out)
        if same and other is not run and saw != clean and not strange:
            chosen += [(other, domain) for domain in sorted(run.sources & set(other.run.held_out))]
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
    bins = rule_bins(run.of_split("validation", true), promise)
    for rule, clean in (("left-out", True), ("across", False)):
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
    """Average over all unseen domains: ECE before and after, coverage, its distance to the promise, size.

    Rules that not every run has are compared with the others over the same domains, under the rule's name.
    """
    domains = [domain for run in studied for domain in run["domains"]]
    summary: dict[str, Any] = {"unseen_domains": len(domains), "promise": promise}
    if domains and all(domain["calibration"] for domain in domains):
        summary["ece"] = {
            when: fmean(domain["calibration"][when]["ece"] for domain in domains)
            for when in ("before", "after")
        }
    summary["coverage"] = compare_rules(domains, promise)
    for rule in ("left-out", "across"):
        having = [domain for domain in domains if all(rule in each for each in domain["coverage"].values())]
        summary[f"coverage where there is {rule}"] = compare_rules(having, promise)
    return summary


def compare_rules(domains: Sequence[dict[str, Any]], promise: float) -> dict[str, dict[str, Any]]:
    """Average coverage and size over domains, for every score and every rule that all of them have."""
    rows = defaultdict(list)
    for domain in domains:
        for kind, rules in domain["coverage"].items():
            for rule, entry in rules.items():
                rows[kind, rule].append(entry)
    coverage: dict[str, dict[str, Any]] = defaultdict(dict)
    for (kind, rule), entries in rows.items():
        if len(entries) < len(domains):
            continue
        reached = np.array([entry["coverage"] for entry in entries])
        sizes = [entry["size"] for entry in entries]
        coverage[kind][rule] = {
            "domains": len(entries),
            "coverage": float(reached.mean()),
            "distance_of_mean": abs(float(reached.mean()) - promise),
            "mean_distance": float(np.abs(reached - promise).mean()),
            "lowest": float(reached.min()),
            "size": None if None in sizes else fmean(sizes),
        }
    return dict(coverage)


def percent(value: float) -> str:
    """Format a fraction."""
    return f"{100 * value:.1f}"


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]], *, text: int) -> str:
    """Write a table whose first columns are text."""
    ruler = ["---"] * text + ["--:"] * (len(headers) - text)
    return "".join(f"| {' | '.join(row)} |\n" for row in (headers, ruler, *rows))


def describe(data: str, studied: Sequence[dict[str, Any]], summary: dict[str, Any]) -> str:
    """Write the tables of one data set."""
    parts = [f"## {data}\n"]
    rows = sorted(((run, domain) for run in studied for domain in run["domains"]), key=row_order)
    if "ece" in summary:
        parts.append("Expected calibration error (15 bins) on the held-out domain, in %:\n")
        cells = [
            [run["method"], domain["domain"], percent(domain["metrics"]["accuracy"])]
            + [percent(domain["calibration"][when]["ece"]) for when in ("before", "after")]
            + [f"{run['temperature']:.2f}" if run["temperature"] else ""]
            for run, domain in rows
        ]
        cells.append(["mean", "", "", *(percent(summary["ece"][when]) for when in ("before", "after")), ""])
        headers = ["method", "held out", "accuracy", "ECE before", "ECE after", "temperature"]
        parts.append(markdown(headers, cells, text=2))
    kind = DEFAULT_SCORE if DEFAULT_SCORE in summary["coverage"] else "errors"
    rules = list(dict.fromkeys(rule for _, domain in rows for rule in domain["coverage"][kind]))
    parts.append(
        f"Coverage of sets (score {kind}) that promise {percent(summary['promise'])} %, in %, with their "
        "mean size, on the held-out domain:\n"
    )
    cells = [
        [run["method"], domain["domain"], *(covered(domain["coverage"][kind].get(rule)) for rule in rules)]
        for run, domain in rows
    ]
    parts.append(markdown(["method", "held out", *rules], cells, text=2))
    parts += [
        describe_rules(title, summary[key])
        for title, key in (
            ("Means over all of these domains", "coverage"),
            ("Over those for which runs left out each source as well", "coverage where there is left-out"),
        )
        if summary[key]
    ]
    return "\n".join(parts)


def describe_rules(title: str, found: dict[str, dict[str, Any]]) -> str:
    """Write the means per score and rule."""
    headers = ["score", "rule", "domains", "coverage", "off on average", "off per domain", "lowest", "size"]
    cells = [
        [kind, rule, str(entry["domains"])]
        + [percent(entry[key]) for key in ("coverage", "distance_of_mean", "mean_distance", "lowest")]
        + ["all" if entry["size"] is None else f"{entry['size']:.2f}"]
        for kind, rules in found.items()
        for rule, entry in rules.items()
    ]
    return f"{title}; *off* is the distance from the promise in points:\n\n" + markdown(
        headers, cells, text=2
    )


def row_order(row: tuple[dict[str, Any], dict[str, Any]]) -> tuple[str, str, float, str]:
    """Order rows by method, then by domain, numbers by their value."""
    run, domain = row
    name = domain["domain"]
    return (run["method"], str(run["seed"]), float(name) if name.isdigit() else 0.0, name)


def covered(entry: dict[str, float | None] | None) -> str:
    """Format coverage and size."""
    if entry is None or entry["coverage"] is None:
        return "–"
    return (
        f"{percent(entry['coverage'])} ({'all' if entry['size'] is None else format(entry['size'], '.2f')})"
    )


def main() -> None:
    """Write one file per data set, and a table of all."""
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
    by_data = defaultdict(list)
    for run in map(read_study, folders):
        by_data[str(run.run.facts["data"])].append(run)
    options.out.mkdir(parents=True, exist_ok=True)
    sections = []
    for data, own in sorted(by_data.items()):
        studied = [study_run(run, own, options.promise) for run in own if len(run.run.held_out) == 1]
        if not studied:
            print(f"{data}: no run that holds out one domain")
            continue
        summary = summarize(studied, options.promise)
        write_json(options.out / f"{data}.json", {"data": data, "summary": summary, "runs": studied})
        sections.append(describe(data, studied, summary))
    text = TITLE + "\n" + "\n".join(sections)
    write_text(options.out / "table.md", text)
    print(text)


TITLE = f"""# Calibration and prediction sets on unseen domains

Written by `benchmarks/calibration_study.py` from finished runs; the domains below took no part in training,
selection or calibration. The rules:

{(__doc__ or "").partition("by" + chr(10) + chr(10))[2]}"""


if __name__ == "__main__":
    main()
