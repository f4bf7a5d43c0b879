"""How well a finished run judges sites: the test of a site, and accuracy estimated without labels.

    python benchmarks/new_site_study.py BENCH_OR_RUN ... [--out results/new-site] [--halves 40]

Reads every run below the given folders and its data (UNSEEN_DATA); trains nothing. A run with its own
reference of the sources is asked about two kinds of sites:

    the same domain   random halves of a source's test samples, which the run used for nothing: a flag is a
                      false alarm
    another domain    as many random samples of the domain that it held out: a flag is right

Per data set it writes DATA.json, with the flagged fraction per pair of run and site, and, for every domain
that a run held out, its true accuracy beside three estimates:

    confidence   mean calibrated confidence
    atc          average thresholded confidence with the sources' threshold, what the product shows
    corrected    atc less its mean error on domains that other runs (same data, method, model and seed) held
                 out and that are sources here; those runs trained on this one's held-out domain, as in every
                 leave-one-out grid, which a user with a really new site has not: a little optimistic
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from calibration_study import find_runs

from unseen.calibration import SCORE_EDGES, Measurement, SiteReference, count_bins
from unseen.calibration.expected_accuracy import estimate_accuracy
from unseen.calibration.histograms import Floats
from unseen.calibration.reliability import log_softmax
from unseen.calibration.scaling import UNSCALED
from unseen.calibration.site_reference import energies
from unseen.calibration.site_test import LEVEL, SiteDifference, compare_site
from unseen.config import RunConfig
from unseen.data import DataSet, Indices, Samples, load_data
from unseen.errors import UsageError
from unseen.federation import Federation, Split, make_federation
from unseen.fileio import write_json
from unseen.runner.prepare import data_request, partition_config, split_fractions
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run
from unseen.seeding import numpy_generator
from unseen.serving.saved_model import SavedModel, load_model

BATCH = 256


@dataclass(frozen=True)
class Answers:
    """Logits, features and targets of some samples."""

    logits: Floats
    features: Floats
    targets: Any

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: Any) -> Answers:
        return Answers(self.logits[rows], self.features[rows], self.targets[rows])


def read_samples(config: RunConfig) -> tuple[DataSet, Federation]:
    """Load the data of a run, split as the run had it."""
    data = load_data(data_request(config)).as_task(config.task)
    federation = make_federation(
        data,
        held_out=config.hold_out,
        among=config.sources,
        validate_on=config.validate_on,
        partition=partition_config(config),
        fractions=split_fractions(config),
        seed=config.seed,
    )
    return data, federation


def answer(saved: SavedModel, data: DataSet, rows: Indices) -> Answers:
    """Run samples through a model."""
    samples = Samples(data, rows)
    logits, features = [], []
    for start in range(0, len(rows), BATCH):
        places = samples.targets.new_tensor(range(start, min(start + BATCH, len(rows))))
        outputs, vectors = saved.outputs_and_features(samples.gather(places).inputs)
        assert vectors is not None
        logits.append(outputs.double().numpy())
        features.append(vectors.double().numpy())
    return Answers(np.concatenate(logits), np.concatenate(features), samples.targets.numpy())


def compare(reference: SiteReference, answers: Answers) -> SiteDifference:
    """Test whether these samples are a site more different than the sources were from one another."""
    measurement = Measurement("moments", features=answers.features.shape[1])
    sums = measurement.sums(answers.logits, np.zeros(0), answers.features)
    moments = measurement.moments(sums, len(answers))
    scores = {
        "distance": reference.gaussian.distances(answers.features),
        "energy": energies(answers.logits),
    }
    beyond = {name: int(limit.beyond(scores[name]).sum()) for name, limit in reference.limits.items()}
    return compare_site(reference, moments, beyond)


def flag_rate(reference: SiteReference, answers: Answers, *, size: int, draws: int, key: str) -> float:
    """Return the fraction of random subsets of a size that are flagged as different."""
    drawn = numpy_generator(0, "new-site study", key)
    flags = [
        compare(reference, answers[drawn.permutation(len(answers))[:size]]).p_value < LEVEL
        for _ in range(draws)
    ]
    return fmean(flags)


def study_run(run: Run, *, halves: int) -> dict[str, Any] | None:
    """Ask one run about its own domains and the ones that it held out; None if it keeps no reference."""
    saved = load_model(run.folder)
    reference = saved.reference
    if reference is None:
        return None
    data, federation = read_samples(RunConfig.load(RunFolder(run.folder).config))
    sites: dict[str, Any] = {}
    sizes = []
    for domain in federation.sources:
        rows = federation.split_indices(Split.TEST, domain)
        if len(rows) < 2:
            continue
        own = answer(saved, data, rows)
        size = len(own) // 2
        sizes.append(size)
        sites[domain] = {
            "kind": "same domain",
            "samples": size,
            "flagged": flag_rate(reference, own, size=size, draws=halves, key=domain),
        }
    estimates = []
    for domain in federation.held_out:
        there = answer(saved, data, federation.target_indices(domain))
        size = min(sizes, default=100)
        sites[domain] = {
            "kind": "another domain",
            "samples": size,
            "flagged": flag_rate(reference, there, size=size, draws=halves, key=domain),
            "p_value_of_all": compare(reference, there).p_value,
        }
        estimates.append({"domain": domain, **estimate(saved, reference, there)})
    facts = {key: run.facts.get(key) for key in ("run_id", "data", "method", "model", "seed")}
    return {**facts, "sources": list(federation.sources), "sites": sites, "estimates": estimates}


def estimate(saved: SavedModel, reference: SiteReference, answers: Answers) -> dict[str, Any]:
    """Estimate the accuracy of samples without labels, beside the true one."""
    scaling = saved.calibration.scaling if saved.calibration else UNSCALED
    confidence = np.exp(log_softmax(scaling.apply(answers.logits))).max(axis=1)
    assert reference.threshold is not None
    found = estimate_accuracy(count_bins(confidence, SCORE_EDGES), reference.threshold, reference.errors)
    return {
        "samples": len(answers),
        "accuracy": float((answers.logits.argmax(axis=1) == answers.targets).mean()),
        "on the sources": reference.accuracy,
        "confidence": float(confidence.mean()),
        "atc": found.accuracy,
        "interval": [found.low, found.high],
    }


def correct(studied: Sequence[dict[str, Any]]) -> None:
    """Add the estimate that other runs' errors correct."""
    for run in studied:
        errors = [
            other["atc"] - other["accuracy"]
            for each in studied
            if each is not run and all(each[key] == run[key] for key in ("data", "method", "model", "seed"))
            for other in each["estimates"]
            if other["domain"] in run["sources"]
        ]
        for own in run["estimates"]:
            own["corrected"] = own["atc"] - fmean(errors) if errors else None


def summarize(studied: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return false alarms, power per held-out domain, and errors and correlation of the estimates."""
    alarms = [
        site["flagged"] for run in studied for site in run["sites"].values() if site["kind"] == "same domain"
    ]
    power = defaultdict(list)
    for run in studied:
        for domain, site in run["sites"].items():
            if site["kind"] == "another domain":
                power[domain].append(site["flagged"])
    points = [each for run in studied for each in run["estimates"]]
    true = np.array([point["accuracy"] for point in points])
    found: dict[str, Any] = {}
    for name in ("confidence", "atc", "corrected"):
        usable = np.array([point[name] is not None for point in points])
        values = np.array([point[name] for point in points if point[name] is not None])
        if len(values) > 1:
            found[name] = {
                "points": len(values),
                "correlation": float(np.corrcoef(values, true[usable])[0, 1]),
                "mean absolute error": float(np.abs(values - true[usable]).mean()),
                "mean error": float((values - true[usable]).mean()),
            }
    inside = [point["interval"][0] <= point["accuracy"] <= point["interval"][1] for point in points]
    return {
        "false alarms": fmean(alarms) if alarms else None,
        "pairs without a change": len(alarms),
        "power": {domain: fmean(rates) for domain, rates in power.items()},
        "estimates": found,
        "true accuracy inside the interval": fmean(inside) if inside else None,
    }


def main() -> None:
    """Write one file per data set, and print its summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="+", type=Path, help="bench folders or run folders")
    parser.add_argument("--out", type=Path, default=Path("results/new-site"))
    parser.add_argument("--halves", type=int, default=40, help="random subsets per pair of run and site")
    options = parser.parse_args()
    runs = [read_run(folder) for folder in find_runs(options.places)]
    if not runs:
        raise UsageError(f"no finished run below {', '.join(map(str, options.places))}")
    by_data = defaultdict(list)
    for run in runs:
        studied = study_run(run, halves=options.halves)
        if studied is not None:
            by_data[studied["data"]].append(studied)
    options.out.mkdir(parents=True, exist_ok=True)
    for data, own in by_data.items():
        correct(own)
        summary = summarize(own)
        write_json(options.out / f"{data}.json", {"data": data, "summary": summary, "runs": own})
        print(data, json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
