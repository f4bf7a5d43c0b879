"""A release's own split in a bench: all its test domains at once, and its validation domains choose."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.bench_job import RELEASED
from unseen.bench.grid import Grid, jobs
from unseen.bench.lodo_cv import folds
from unseen.bench.result_store import without_domain
from unseen.bench.runner import inspect_data, run_bench
from unseen.bench.workers import Placement
from unseen.data import SOURCES
from unseen.data.benchmarks.povertymap import DOMAINS
from unseen.errors import UsageError

SOURCE = SOURCES["povertymap"]


@pytest.fixture(scope="module")
def villages(tmp_path_factory):
    """Six villages of every domain, in the release's layout; one channel tells their wealth."""
    root = tmp_path_factory.mktemp("root")
    folder, rows, draw = root / "poverty_v1.1", [], np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    for domain in DOMAINS:
        country, _, kind = domain.rpartition("-")
        for _ in range(6):
            values = draw.normal(size=(8, 12, 12)).astype(np.float32)
            values[2] += (wealth := draw.normal())
            np.savez(folder / "images" / f"landsat_poverty_img_{len(rows)}.npz", x=values)
            rows.append((country, kind == "urban", wealth))
    with (folder / "dhs_metadata.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("country", "urban", "wealthpooled"), *rows])
    return root


@pytest.fixture(scope="module")
def finished(villages, tmp_path_factory):
    common = {"data": "povertymap", "model": "mnist-cnn", "image_size": 12, "rounds": 3, "batch_size": 2}
    placement = Placement(data_root=str(villages))
    grid = inspect_data(Grid(common=common, methods={"fedavg": {}}, hold_out=(RELEASED,)), placement)
    folder = BenchFolder(tmp_path_factory.mktemp("bench"))
    return grid, folder, run_bench(grid, folder, workers=1, placement=placement)


def test_all_domains_of_the_test_are_held_out_and_those_of_validation_choose(finished):
    grid, folder, outcome = finished
    assert not outcome.failed
    (job,) = jobs(grid)
    assert job.config.hold_out == tuple(sorted(SOURCE.hold_out))
    assert job.config.validate_on == SOURCE.validate_on and job.held_out == RELEASED
    (result,) = outcome.results
    values = json.loads((folder.work / result.job / "result.json").read_text())
    assert values["selection"] == "validation-domains"
    assert set(result.accuracy) == {"source-validation", "validation-domains", "last", "oracle"}


def test_numbers_are_over_all_held_out_samples_together(finished):
    _, folder, outcome = finished
    (result,) = outcome.results
    records = [
        json.loads(line) for line in (folder.work / result.job / "records.jsonl").read_text().splitlines()
    ]
    pooled = [
        score["metrics"]["pearson_r"]
        for record in records
        if record["event"] == "evaluation"
        for score in record["groups"]
        if score["split"] == "target" and score["group"] is None
    ]
    assert len(pooled) == 3 and result.curve == pooled
    assert result.accuracy["last"] == pooled[-1] and result.worst_group is not None
    validation = [
        {
            score["group"]: score["metrics"]["pearson_r"]
            for score in record["groups"]
            if score["split"] == kept
        }
        for kept in ("validation-domain",)
        for record in records
        if record["event"] == "evaluation"
    ]
    best = max(validation, key=lambda scores: scores[None])
    assert result.validation == best[None]
    assert result.validation_worst == min(value for group, value in best.items() if group is not None)


def test_nothing_of_the_test_reaches_a_choice():
    scores = [
        {"split": "target", "domain": "mali-urban"},
        {"split": "validation", "domain": "togo-urban"},
        {"split": "validation-domain", "domain": "benin-rural"},
    ]
    groups = [{"split": "target", "group": "urban"}, {"split": "validation-domain", "group": "urban"}]
    (blind,) = without_domain([{"round": 1, "scores": scores, "groups": groups}], RELEASED)
    assert blind["scores"] == scores[1:] and blind["groups"] == groups[1:]


def test_leave_one_domain_out_is_refused(finished):
    grid, _, _ = finished
    with pytest.raises(UsageError, match="not for a release's split"):
        folds(grid, jobs(grid)[0])


def test_data_without_a_split_of_its_own_is_refused():
    grid = Grid(common={"data": "rotated-digits"}, methods={"fedavg": {}}, hold_out=(RELEASED,))
    with pytest.raises(UsageError, match="name at least one domain"):
        jobs(grid)
