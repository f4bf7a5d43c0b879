"""How well finished runs judge sites: the tests of a site, and accuracy estimated without labels.

    python benchmarks/new_site_study.py BENCH_OR_RUN ... [--out results/new-site] [--halves 40]

Reads every run below the given folders and its data (UNSEEN_DATA); trains nothing. A run that holds out one
domain is asked about two kinds of sites, each as random subsets of the same size:

    the same domain   halves of a source's test samples, which the run used for nothing: a flag is a false
                      alarm
    another domain    samples of the domain that it held out: a flag is right

by two tests: whether the site is none of the sources (`new`, at 1 %), and whether it differs from them more
than they did from one another (`different`, at 5 %). For every held-out domain the true accuracy stands
beside

    confidence   mean calibrated confidence
    atc          average thresholded confidence with the sources' threshold
    left-out     what `unseen calibrate` makes of it: less its mean error, in log-odds, on the sources of this
                 run, in runs that held out both that source and this run's held-out domain. Of the same
                 method; where there are none, of another one on the same data and network
    across       the same from runs of this method that trained on this run's held-out domain, as in an
                 ordinary leave-one-out grid: a user with a really new site has none of them

Runs that hold out more than one domain only help others. Per data set it writes DATA.json, and for all of
them table.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from calibration_study import find_runs, markdown, percent

from unseen.calibration import SCORE_EDGES, Measurement, SiteReference, count_bins
from unseen.calibration.expected_accuracy import correct_accuracy, estimate_accuracy, find_shift
from unseen.calibration.histograms import Floats
from unseen.calibration.moments import Moments
from unseen.calibration.reliability import log_softmax
from unseen.calibration.scaling import UNSCALED
from unseen.calibration.site_reference import describe_sources, energies
from unseen.calibration.site_test import LEVEL, NEW_LEVEL, SiteDifference, compare_site
from unseen.config import RunConfig
from unseen.data import DataSet, Indices, Samples, load_data
from unseen.errors import UsageError
from unseen.federation import Federation, Split, make_federation
from unseen.fileio import write_json, write_text
from unseen.runner.prepare import data_request, partition_config, split_fractions
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run
from unseen.seeding import numpy_generator
from unseen.serving.saved_model import SavedModel, load_model

BATCH = 256
ESTIMATES = ("confidence", "atc", "left-out", "across")


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

    @property
    def moments(self) -> Moments:
        """Their summed features."""
        measurement = Measurement("moments", features=self.features.shape[1])
        return measurement.moments(
            measurement.sums(self.logits, np.zeros(0), self.features), len(self.targets)
        )


_LOADED: dict[str, DataSet] = {}
"""The data set read last: runs in a row mostly ask for the same."""


def read_samples(config: RunConfig) -> tuple[DataSet, Federation]:
    """Load the data of a run, split as the run had it."""
    request = data_request(config)
    key = repr((request, config.task))
    if key not in _LOADED:
        _LOADED.clear()
        _LOADED[key] = load_data(request).as_task(config.task)
    data = _LOADED[key]
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


def complete(
    reference: SiteReference, saved: SavedModel, data: DataSet, federation: Federation
) -> SiteReference:
    """Add the sources' means to the reference of a model that was trained before models kept them."""
    if reference.means:
        return reference
    moments = {
        name: answer(saved, data, federation.split_indices(Split.VALIDATION, name)).moments
        for name in reference.samples
    }
    means, within = describe_sources(moments)
    return replace(reference, means=means, within=within)


def compare(reference: SiteReference, answers: Answers) -> SiteDifference:
    """Compare these samples, as a site, with the sources."""
    scores = {
        "distance": reference.gaussian.distances(answers.features),
        "energy": energies(answers.logits),
    }
    beyond = {name: int(limit.beyond(scores[name]).sum()) for name, limit in reference.limits.items()}
    return compare_site(reference, answers.moments, beyond)


def flag_rates(
    reference: SiteReference, answers: Answers, *, size: int, draws: int, key: str
) -> dict[str, Any]:
    """Return the fractions of random subsets of a size that are flagged, and told apart from each source."""
    drawn = numpy_generator(0, "new-site study", key)
    found = [compare(reference, answers[drawn.permutation(len(answers))[:size]]) for _ in range(draws)]
    return {
        "samples": size,
        "new": fmean(bool(each.new) for each in found),
        "different": fmean(each.different for each in found),
        "told apart": {
            name: fmean(each.sources.get(name, 1.0) < NEW_LEVEL for each in found) for name in reference.means
        },
    }


def study_run(run: Run, others: Sequence[Run], *, halves: int) -> dict[str, Any] | None:
    """Ask one run about its own domains and the one that it held out; None if it keeps no reference."""
    saved = load_model(run.folder)
    if saved.reference is None:
        return None
    data, federation = read_samples(RunConfig.load(RunFolder(run.folder).config))
    reference = complete(saved.reference, saved, data, federation)
    own = {
        domain: answer(saved, data, rows)
        for domain in federation.sources
        if len(rows := federation.split_indices(Split.TEST, domain)) > 1
    }
    sites = {
        domain: {
            "kind": "same domain",
            **flag_rates(reference, found, size=len(found) // 2, draws=halves, key=domain),
        }
        for domain, found in own.items()
    }
    estimates = []
    for domain in federation.held_out:
        there = answer(saved, data, federation.target_indices(domain))
        size = min((len(found) // 2 for found in own.values()), default=100)
        sites[domain] = {
            "kind": "another domain",
            **flag_rates(reference, there, size=size, draws=halves, key=domain),
            "p_value_of_all": compare(reference, there).p_value,
        }
        estimates.append({"domain": domain, **estimate(saved, reference, there, run, others)})
    facts = {key: run.facts.get(key) for key in ("run_id", "data", "method", "model", "seed")}
    return {**facts, "sources": list(federation.sources), "sites": sites, "estimates": estimates}


def estimate(
    saved: SavedModel, reference: SiteReference, answers: Answers, run: Run, others: Sequence[Run]
) -> dict[str, Any]:
    """Estimate the accuracy of samples without labels, beside the true one."""
    scaling = saved.calibration.scaling if saved.calibration else UNSCALED
    confidence = np.exp(log_softmax(scaling.apply(answers.logits))).max(axis=1)
    assert reference.threshold is not None
    found = estimate_accuracy(count_bins(confidence, SCORE_EDGES), reference.threshold, reference.errors)
    clean = left_out_points(run, others, same=True, clean=True)
    borrowed = clean or left_out_points(run, others, same=False, clean=True)
    across = left_out_points(run, others, same=True, clean=False)
    return {
        "samples": len(answers),
        "accuracy": float((answers.logits.argmax(axis=1) == answers.targets).mean()),
        "on the sources": reference.accuracy,
        "confidence": float(confidence.mean()),
        "atc": found.accuracy,
        "interval": [found.low, found.high],
        "left-out": correct_accuracy(found.accuracy, find_shift(borrowed)) if borrowed else None,
        "left-out of another method": bool(borrowed and not clean),
        "across": correct_accuracy(found.accuracy, find_shift(across)) if across else None,
    }


def left_out_points(run: Run, others: Sequence[Run], *, same: bool, clean: bool) -> list[tuple[float, float]]:
    """List (estimated, true) accuracies on this run's sources in runs that held them out.

    same   whether those runs must have the same method
    clean  those that did not train on what this run holds out, or those that did
    """
    keys = ("data", "model", "seed", "task", *(("method",) if same else ()))
    points = []
    for other in others:
        alike = all(other.facts.get(key) == run.facts.get(key) for key in keys)
        known = trained_on(other)
        saw = bool(known & set(run.held_out))
        if alike and saw != clean and known <= trained_on(run) | set(run.held_out):
            points += [
                (site["expected_accuracy"]["accuracy"], site["accuracy"])
                for site in other.final.get("sites", ())
                if site["split"] == "target" and site["domain"] in trained_on(run) and "accuracy" in site
            ]
    return points


def trained_on(run: Run) -> set[str]:
    """Return the domains whose samples a run trained on."""
    return {name for client in run.start["clients"] for name in client["domains"]}


def summarize(studied: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return false alarms, power per held-out domain, and errors and correlation of the estimates."""
    sites = [(domain, site) for run in studied for domain, site in run["sites"].items()]
    same = [site for _, site in sites if site["kind"] == "same domain"]
    power: dict[str, list[Any]] = defaultdict(list)
    for domain, site in sites:
        if site["kind"] == "another domain":
            power[domain].append(site)
    return {
        "false alarms": {test: fmean(site[test] for site in same) for test in ("new", "different") if same},
        "pairs without a change": len(same),
        "power": {
            domain: {test: fmean(site[test] for site in found) for test in ("new", "different")}
            for domain, found in power.items()
        },
        "told apart": {
            domain: {
                source: fmean(site["told apart"][source] for site in found if source in site["told apart"])
                for source in dict.fromkeys(name for site in found for name in site["told apart"])
            }
            for domain, found in power.items()
        },
        **judge_estimates([point for run in studied for point in run["estimates"]]),
    }


def judge_estimates(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return correlation with the truth and errors of every estimate, over the points that have it."""
    found: dict[str, Any] = {}
    for name in ESTIMATES:
        usable = [point for point in points if point[name] is not None]
        values = np.array([point[name] for point in usable])
        true = np.array([point["accuracy"] for point in usable])
        if len(values) > 1:
            found[name] = {
                "points": len(values),
                "correlation": float(np.corrcoef(values, true)[0, 1]),
                "mean absolute error": float(np.abs(values - true).mean()),
                "mean error": float((values - true).mean()),
            }
    inside = [point["interval"][0] <= point["accuracy"] <= point["interval"][1] for point in points]
    return {"estimates": found, "true accuracy inside the interval": fmean(inside) if inside else None}


def describe(data: str, studied: Sequence[dict[str, Any]], summary: dict[str, Any]) -> str:
    """Write the tables of one data set."""
    alarms = {"new": "–", "different": "–"}
    alarms |= {test: percent(rate) for test, rate in summary["false alarms"].items()}
    sources = sorted({source for run in studied for source in run["sources"]}, key=by_number)
    power = [
        [domain, percent(summary["power"][domain]["new"]), percent(summary["power"][domain]["different"])]
        + [percent(told[source]) if source in told else "–" for source in sources]
        for domain, told in sorted(summary["told apart"].items(), key=lambda item: by_number(item[0]))
    ]
    halves = [
        [
            domain,
            str(len(found)),
            *(percent(fmean(site[test] for site in found)) for test in ("new", "different")),
        ]
        for domain in sources
        if (
            found := [
                site
                for run in studied
                for name, site in run["sites"].items()
                if name == domain and site["kind"] == "same domain"
            ]
        )
    ]
    sizes = [site["samples"] for run in studied for site in run["sites"].values()]
    points = sorted(
        ((run["method"], point) for run in studied for point in run["estimates"]),
        key=lambda item: (item[0], by_number(item[1]["domain"])),
    )
    rows = [
        [method, point["domain"], percent(point["on the sources"]), percent(point["accuracy"])]
        + ["–" if point[name] is None else percent(point[name]) for name in ESTIMATES]
        + [" to ".join(map(percent, point["interval"]))]
        for method, point in points
    ]
    headers = ["method", "held out", "sources", "truth", *ESTIMATES, "interval of atc"]
    return "\n".join(
        [
            f"## {data}\n",
            f"Subsets of {min(sizes)} to {max(sizes)} samples, flagged in %. Halves of a source's own test "
            f"samples (false alarms: new {alarms['new']} %, different {alarms['different']} % "
            f"of {summary['pairs without a change']} pairs of run and source):\n",
            markdown(["domain", "runs", "new", "different"], halves, text=1),
            "Samples of the held-out domain, and how often they are told apart from each source "
            f"(p < {NEW_LEVEL:g}):\n",
            markdown(["held out", "new", "different", *(f"from {name}" for name in sources)], power, text=1),
            "Accuracy on the held-out domain in %, and what was expected without labels:\n",
            markdown(headers, rows, text=2),
            describe_estimates(summary),
        ]
    )


def describe_estimates(summary: dict[str, Any]) -> str:
    """Write how good the estimates are."""
    rows = [
        [
            name,
            str(found["points"]),
            f"{found['correlation']:.2f}",
            percent(found["mean absolute error"]),
            f"{100 * found['mean error']:+.1f}",
        ]
        for name, found in summary["estimates"].items()
    ]
    headers = ["estimate", "points", "correlation", "mean absolute error", "mean error"]
    inside = summary["true accuracy inside the interval"]
    told = f"The interval of atc holds the truth in {percent(inside)} %.\n" if inside is not None else ""
    return markdown(headers, rows, text=1) + ("\n" + told if told else "")


def by_number(name: str) -> tuple[float, str]:
    """Order domains, numbers by their value."""
    return (float(name) if name.isdigit() else 0.0, name)


def write_study(places: Iterable[Path], out: Path, *, halves: int) -> str:
    """Study all runs, write the files, and return the table."""
    runs = [read_run(folder) for folder in find_runs(places)]
    asked = [run for run in runs if len(run.held_out) == 1]
    if not asked:
        raise UsageError(f"no finished run that holds out one domain below {', '.join(map(str, places))}")
    by_data = defaultdict(list)
    for run in sorted(asked, key=lambda run: str(run.facts["data"])):
        if (found := study_run(run, runs, halves=halves)) is not None:
            by_data[found["data"]].append(found)
    out.mkdir(parents=True, exist_ok=True)
    sections = []
    for data, own in by_data.items():
        summary = summarize(own)
        write_json(out / f"{data}.json", {"data": data, "summary": summary, "runs": own})
        sections.append(describe(data, own, summary))
    if len(by_data) > 1:
        points = [point for own in by_data.values() for run in own for point in run["estimates"]]
        sections.append("## All data sets together\n\n" + describe_estimates(judge_estimates(points)))
    text = TITLE + "\n" + "\n".join(sections)
    write_text(out / "table.md", text)
    return text


TITLE = f"""# New sites

Written by `benchmarks/new_site_study.py` from finished runs. A site is called *new* if it is none of the
sources (p < {NEW_LEVEL:g} for each), and *different* if it differs from them more than they did from one
another (p < {LEVEL:g}). The estimates:
{(__doc__ or "").partition("stands" + chr(10) + "beside")[2].partition("Runs that hold")[0].strip(chr(10))}
"""


def main() -> None:
    """Write the records and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="+", type=Path, help="bench folders or run folders")
    parser.add_argument("--out", type=Path, default=Path("results/new-site"))
    parser.add_argument("--halves", type=int, default=40, help="random subsets per pair of run and site")
    options = parser.parse_args()
    print(write_study(options.places, options.out, halves=options.halves))


if __name__ == "__main__":
    main()
