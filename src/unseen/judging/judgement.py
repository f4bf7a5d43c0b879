"""A judgement: metrics of one or two models per site and of all together, and the tests between them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unseen.calibration.histograms import Floats
from unseen.checksums import check_sealed, write_sealed_text
from unseen.errors import UnseenError, UsageError
from unseen.fileio import read_text, to_json
from unseen.frames import make_frame
from unseen.judging.paired_tests import (
    UNTESTED,
    PairedTest,
    Stratum,
    combine_areas,
    delong_test,
    mcnemar_test,
    paired_mean_test,
    ranked_classes,
)
from unseen.judging.score_intervals import (
    ACROSS,
    Scores,
    area_score,
    compute_scores,
    mean_score,
    root_score,
    wilson,
    with_exact,
)
from unseen.judging.site_findings import LEFT, Groups, JudgeTerms, SiteFindings
from unseen.tasks.detail_metrics import DETAIL_METRICS
from unseen.tasks.metrics import METRICS

JUDGEMENT, PAGE = "judgement.json", "judgement.html"
POOLED = "all sites"
Record = dict[str, Any]


@dataclass(frozen=True)
class Judgement:
    """The numbers of a judgement; `values` is what judgement.json holds."""

    values: Record

    @property
    def sites(self) -> dict[str, Record]:
        """The results per site."""
        return dict(self.values["sites"])

    @property
    def pooled(self) -> Record:
        """The results of all sites together."""
        return dict(self.values["pooled"])

    @property
    def tests(self) -> list[Record]:
        """The tests between two models over all sites; none for one model."""
        return list(self.pooled["tests"])

    def metric(self, name: str, *, site: str = "", model: int = 0) -> float:
        """Return the value of a metric, at one site or over all."""
        place = self.sites[site] if site else self.pooled
        value = place["metrics"][model][name]["value"]
        return math.nan if value is None else float(value)

    def frame(self, library: str | None = None) -> Any:
        """Return a data frame with one line per place, group, model and metric.

        library  "pandas" or "polars"; if not given, pandas where it is installed, else polars
        """
        return make_frame(list_rows(self.values), library=library)

    def save(self, folder: Path) -> Path:
        """Write judgement.json, whose checksum is kept beside it; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        write_sealed_text(folder / JUDGEMENT, to_json(self.values))
        return folder / JUDGEMENT


def load_judgement(folder: str | Path) -> Judgement:
    """Read the judgement that `unseen judge` wrote into a folder; a damaged one is refused."""
    file = Path(folder) / JUDGEMENT
    if not file.exists():
        raise UsageError(f"{folder} has no {JUDGEMENT}: give the folder that 'unseen judge' wrote")
    check_sealed(file, way_out="judge the model again")
    try:
        values = json.loads(read_text(file))
        if not {"models", "sites", "pooled", "refused"} <= values.keys():
            raise ValueError("it lacks its main entries")
    except (ValueError, AttributeError) as error:
        raise UnseenError(f"{file} is not a judgement ({error}); judge the model again") from error
    return Judgement(values)


def combine_findings(
    findings: Sequence[SiteFindings],
    terms: JudgeTerms,
    models: Sequence[Mapping[str, Any]],
    *,
    refused: Mapping[str, str],
    about: Mapping[str, Any],
) -> Judgement:
    """Combine what the sites found; sites in the order of their names, so that sums do not depend on it.

    models   what is said about each model
    refused  site -> why it is not judged
    about    what else is said: data, where it ran
    """
    if not findings:
        reasons = "; ".join(f"{site}: {reason}" for site, reason in refused.items()) or "there is none"
        raise UnseenError(f"no site could judge the model: {reasons}")
    found = sorted(findings, key=lambda each: each.site)
    sites = {each.site: _describe_site(each, terms) for each in found}
    worst = [_worst(sites, place) for place in range(len(models))]
    return Judgement(
        {
            "format": 1,
            **about,
            "task": terms.task,
            "classes": list(terms.classes),
            "level": 0.95,
            "models": [dict(each) for each in models],
            "sites": sites,
            "pooled": _describe_pool(found, terms),
            "worst": worst,
            "refused": dict(refused),
            "left": [_describe_left(each) for each in found],
        }
    )


def _describe_site(found: SiteFindings, terms: JudgeTerms) -> Record:
    metrics = [compute_scores(sums) for sums in found.sums]
    stratum = None
    if found.rankings is not None:
        stratum = Stratum(found.rankings.areas[-1], found.rankings.covariance[-1], found.samples)
        _put_areas(metrics, stratum, _smaller_sides([found]))
        for place, scores in enumerate(metrics):
            for name, table in (
                ("auprc", found.rankings.precision),
                ("sensitivity_at_specificity_95", found.rankings.sensitivity),
            ):
                scores[name] = with_exact(scores[name], float(table[-1, place]))
    return {
        "samples": found.samples,
        "per_class": dict(zip(terms.classes, found.counts, strict=True)) if terms.classes else {},
        "min_group": found.min_group,
        "metrics": [_as_values(each) for each in metrics],
        "class_areas": _class_areas([found], terms),
        "tests": _tests([found], terms, stratum),
        "groups": [_describe_groups([each], terms) for each in found.groups],
    }


def _describe_pool(found: Sequence[SiteFindings], terms: JudgeTerms) -> Record:
    """Describe all sites together: exact where sums add up, combined within sites where samples rank."""
    merged = terms.empty_sums()
    for each in found:
        for total, own in zip(merged, each.sums, strict=True):
            total.merge(own)
    metrics = [compute_scores(sums) for sums in merged]
    stratum = _combine(found, -1)
    if terms.classes:
        for scores in metrics:
            scores[ACROSS] = scores["auroc"]
        _put_areas(metrics, stratum, _smaller_sides(found))
    columns = dict.fromkeys(groups.column for each in found for groups in each.groups)
    return {
        "samples": sum(each.samples for each in found),
        "per_class": {
            name: sum(each.counts[place] for each in found) for place, name in enumerate(terms.classes)
        },
        "min_group": max(each.min_group for each in found),
        "metrics": [_as_values(each) for each in metrics],
        "class_areas": _class_areas(found, terms),
        "tests": _tests(found, terms, stratum),
        "groups": [
            _describe_groups(
                [groups for each in found for groups in each.groups if groups.column == column], terms
            )
            for column in columns
        ],
    }


def _combine(found: Sequence[SiteFindings], row: int) -> Stratum | None:
    """Combine the areas in a row of the sites' tables."""
    return combine_areas(
        [
            Stratum(each.rankings.areas[row], each.rankings.covariance[row], each.samples)
            for each in found
            if each.rankings is not None
        ]
    )


def _smaller_sides(found: Sequence[SiteFindings]) -> int:
    """Add up the sites' fewest samples on one side of a ranking, among the classes that have an area."""
    known = [
        each.rankings.counts[np.isfinite(each.rankings.areas[:-1, 0])]
        for each in found
        if each.rankings is not None
    ]
    return sum(int(counts.min()) for counts in known if len(counts))


def _put_areas(metrics: Sequence[Scores], stratum: Stratum | None, smaller: int) -> None:
    """Replace the areas of the histograms by DeLong's."""
    for place, scores in enumerate(metrics):
        area, variance = _entry(stratum, place)
        scores["auroc"] = area_score(area, variance, smaller)


def _entry(stratum: Stratum | None, place: int) -> tuple[float, float]:
    if stratum is None:
        return math.nan, math.nan
    return float(stratum.areas[place]), float(stratum.covariance[place, place])


def _class_areas(found: Sequence[SiteFindings], terms: JudgeTerms) -> Record:
    """Return per class its area, one against the rest, of every model."""
    areas: Record = {}
    for row, number in enumerate(ranked_classes(terms.outputs) if len(terms.classes) > 2 else ()):
        stratum = _combine(found, row)
        smaller = sum(int(each.rankings.counts[row].min()) for each in found if each.rankings is not None)
        areas[terms.classes[number]] = [
            _score_values(area_score(*_entry(stratum, place), smaller))
            for place in range(len(terms.measurements))
        ]
    return areas


def _tests(found: Sequence[SiteFindings], terms: JudgeTerms, stratum: Stratum | None) -> list[Record]:
    """Test the second model against the first: sums over the sites, areas within them."""
    if len(terms.measurements) < 2:
        return []
    first, second = (float(sum(each.paired[place] for each in found)) for place in (0, 1))
    samples = sum(each.samples for each in found)
    if not terms.classes:
        tested = paired_mean_test(first, second, samples)
        scale = terms.scale[1]
        return [_test_values("mae", "a paired t-test", tested.scaled_by(scale))]
    only = {"only_first": int(first), "only_second": int(second)}
    tests = [_test_values("accuracy", "McNemar", mcnemar_test(int(first), int(second), samples)) | only]
    tests.append(_test_values("auroc", "DeLong", delong_test(stratum) if stratum else UNTESTED))
    return tests


def _test_values(metric: str, name: str, tested: PairedTest) -> Record:
    return {"metric": metric, "test": name} | {key: _known(value) for key, value in tested._asdict().items()}


def _describe_groups(parts: Sequence[Groups], terms: JudgeTerms) -> Record:
    """Describe the groups of a column, summed over sites; a group that a site hides counts only elsewhere."""
    listed = []
    for name in sorted({name for part in parts for name in part.names}):
        own = [(part, part.names.index(name)) for part in parts if name in part.names]
        count = sum(int(part.counts[row]) for part, row in own)
        sums: Floats = sum((part.sums[row] for part, row in own), np.zeros(()))
        stratum = combine_areas(
            [Stratum(part.areas[row], part.covariance[row], int(part.counts[row])) for part, row in own]
        )
        smaller = sum(int(part.smaller[row]) for part, row in own)
        metrics: list[Scores] = []
        for place in range(len(terms.measurements)):
            if terms.classes:
                area = area_score(*_entry(stratum, place), smaller)
                metrics.append({"accuracy": wilson(int(sums[place, 0]), count), "auroc": area})
            else:
                metrics.append(_error_scores(*sums[place].tolist(), count=count, scale=terms.scale[1]))
        listed.append({"name": name, "samples": count, "metrics": [_as_values(each) for each in metrics]})
    return {"column": parts[0].column, "groups": listed, "hidden": sum(part.hidden for part in parts)}


def _error_scores(absolute: float, square: float, fourth: float, *, count: int, scale: float) -> Scores:
    return {
        "mae": mean_score(absolute, square, count, low=0.0).scaled_by(scale),
        "rmse": root_score(square / count, fourth / count - (square / count) ** 2, count).scaled_by(scale),
    }


def _worst(sites: Mapping[str, Record], place: int) -> Record:
    """Name the site where each metric of a model is worst."""
    names = dict.fromkeys(name for site in sites.values() for name in site["metrics"][place])
    worst = {}
    for name in names:
        known = {
            where: value
            for where, site in sites.items()
            if (value := site["metrics"][place][name]["value"]) is not None
        }
        if known:
            sign = 1 if is_better_higher(name) else -1
            where = min(known, key=lambda each: sign * known[each])
            worst[name] = {"where": where, "value": known[where]}
    return worst


def is_better_higher(name: str) -> bool:
    """Whether larger values of a metric are better."""
    if name in DETAIL_METRICS:
        return DETAIL_METRICS[name].higher_is_better
    return name not in METRICS or METRICS[name].higher_is_better


def _describe_left(found: SiteFindings) -> Record:
    arrays = found.to_arrays()
    return {
        "site": found.site,
        "kind": LEFT,
        "numbers": sum(array.size for array in arrays.values()),
        "bytes": sum(array.nbytes for array in arrays.values()),
    }


def _as_values(scores: Scores) -> Record:
    return {name: _score_values(score) for name, score in scores.items()}


def _score_values(score: Any) -> Record:
    return {key: _known(value) for key, value in score._asdict().items()}


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def list_rows(values: Mapping[str, Any]) -> list[Record]:
    """List every number as a line: place, column and name of a group, model, metric, value and interval."""
    rows = []
    for where, place in (*values["sites"].items(), (POOLED, values["pooled"])):
        parts = [({"column": None, "group": None, "samples": place["samples"]}, place["metrics"])]
        for groups in place["groups"]:
            parts += [
                (
                    {"column": groups["column"], "group": each["name"], "samples": each["samples"]},
                    each["metrics"],
                )
                for each in groups["groups"]
            ]
        for about, metrics in parts:
            for model, scores in zip(values["models"], metrics, strict=True):
                rows += [
                    {"where": where, **about, "model": model["name"], "metric": name, **score}
                    for name, score in scores.items()
                ]
    return rows
