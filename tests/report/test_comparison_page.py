"""Several runs on one page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest

from unseen.errors import UsageError
from unseen.report import write_comparison, write_report
from unseen.report.comparison import run_labels
from unseen.runs.reader import read_run

MakeRun = Callable[..., Path]


def with_target(folder: Path, **metrics: float) -> Path:
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["metrics"]["target"] = metrics
    path.write_text(json.dumps(result))
    return folder


def heading(page: Path) -> str:
    found = re.search(r"<h1>(.*?)</h1>", page.read_text(encoding="utf-8"))
    assert found
    return re.sub("<[^>]+>", "", found[1]).replace("\u00a0", " ")


def test_runs_are_ranked_linked_and_drawn(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        with_target(make_run("a run", method="fedavg"), accuracy=0.80),
        with_target(make_run("b&c", method="csac"), accuracy=0.91),
    ]
    for folder in folders:
        write_report(folder)
    page = write_comparison(folders, tmp_path / "pages" / "comparison.html")
    html = page.read_text(encoding="utf-8")
    assert heading(page) == "On ‘75’, which no run was trained on: CSAC 91.0 %, FedAvg 80.0 %"
    links = [unquote(link) for link in re.findall(r'<a href="([^"]+)"', html)]
    assert [(page.parent / link).resolve() for link in links] == [f / "report.html" for f in folders]
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', html, flags=re.S)[1])["charts"]  # type: ignore[index]
    assert list(charts) == ["chart-comparison-accuracy-1"]
    assert '"FedAvg"' in json.dumps(charts)
    assert page.stat().st_size < 2_000_000


def test_regression_is_ranked_by_correlation(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        with_target(make_run("a", method="fedavg", task="regression"), pearson_r=0.5),
        with_target(make_run("b", method="csac", task="regression"), pearson_r=0.75),
    ]
    page = write_comparison(folders, tmp_path / "c.html")
    assert heading(page).endswith("(Pearson r): CSAC 0.7500, FedAvg 0.5000")


def test_runs_that_cannot_be_compared_are_not_ranked(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("a"), make_run("b", held_out=["0"]), make_run("c", finished=False, rounds=2)]
    page = write_comparison(folders, tmp_path / "c.html")
    assert heading(page) == "3 runs side by side"
    assert "(unfinished)" in page.read_text(encoding="utf-8")
    assert "<a " not in page.read_text(encoding="utf-8").split("</main>")[0]


def test_labels_tell_runs_apart(make_run: MakeRun) -> None:
    folders = [make_run("a"), make_run("b", seed=1), make_run("c", held_out=["0"])]
    labels = run_labels([read_run(folder) for folder in folders])
    assert labels == ["FedAvg, on ‘75’, seed 0", "FedAvg, on ‘75’, seed 1", "FedAvg, on ‘0’, seed 0"]
    twins = run_labels([read_run(make_run("d")), read_run(make_run("e"))])
    assert twins == ["FedAvg, d", "FedAvg, e"]


def test_many_runs_share_a_colour_by_method(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [
        make_run(
            f"{method}{seed}", method=method, seed=seed, rounds=2, domains=["a", "b"], classes=["x", "y"]
        )
        for method in ("fedavg", "csac")
        for seed in range(6)
    ]
    html = write_comparison(folders, tmp_path / "c.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="charts">(.*?)</script>', html, flags=re.S)[1])  # type: ignore[index]
    chart = data["charts"]["chart-comparison-accuracy-1"]
    rows = next(iter(chart["datasets"].values())) if "datasets" in chart else chart["data"]["values"]
    assert {row["series"] for row in rows} == {"FedAvg", "CSAC"}
    assert len({row["run"] for row in rows}) == 12


def test_nothing_to_compare_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to compare"):
        write_comparison([], tmp_path / "c.html")
