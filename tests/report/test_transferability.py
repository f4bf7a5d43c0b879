"""The transferability graph: a faithful layout, and names, colours and sizes from the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.report import draw_figures
from unseen.report.method_figures import transferability_layout
from unseen.report.png import to_png, vega_lite
from unseen.runs.reader import read_run


def distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


@given(seed=st.integers(0, 1000), count=st.integers(1, 12))
def test_points_of_a_plane_keep_all_their_distances(seed: int, count: int) -> None:
    points = np.random.default_rng(seed).normal(size=(count, 2))
    layout = transferability_layout(distances(points))
    assert layout.shape == (count, 2)
    np.testing.assert_allclose(distances(layout), distances(points), atol=1e-6)


def test_a_mirrored_or_turned_cloud_gives_the_same_picture() -> None:
    points = np.random.default_rng(0).normal(size=(9, 5)) * [5, 2, 1, 0.5, 0.1]
    turned = points @ np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    np.testing.assert_allclose(
        transferability_layout(distances(points)), transferability_layout(distances(-turned)), atol=1e-9
    )


def test_distances_that_no_space_has_still_give_a_layout() -> None:
    layout = transferability_layout([[0, 1, 9], [1, 0, 1], [9, 1, 0]])
    assert np.isfinite(layout).all() and np.ptp(layout[:, 0]) > 5


@pytest.fixture
def mdfl_run(make_run: Callable[..., Path]) -> Path:
    folder = make_run(method="mdfl", domains=["photo", "held", "sketch"], held_out=["held"], rounds=3,
                      classes=["dog", "cat"])  # fmt: skip
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    points = np.array([[0.0, 0, 1], [4, 0, 0], [0, 1, 0], [4, 1, 2]])
    for record in records:
        if record["event"] == "round":
            record["diagnostics"] = {
                "transferability": {
                    "domains": [0, 0, 2, 2],
                    "classes": [0, 1, 0, 1],
                    "samples": [10, 20, 30, 40],
                    "distances": (distances(points) * record["round"]).tolist(),
                }
            }
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_the_graph_shows_the_first_and_the_last_round_by_name(mdfl_run: Path) -> None:
    panels = draw_figures(read_run(mdfl_run))["transferability"]
    assert list(panels) == ["round 1", "round 3"]
    chart = vega_lite(panels["round 3"])
    (values,) = chart["datasets"].values()
    shown = [(row["domain"], row["class"], row["samples"]) for row in values]
    assert shown == [("photo", "dog", 10), ("photo", "cat", 20), ("sketch", "dog", 30), ("sketch", "cat", 40)]
    colour = chart["layer"][0]["encoding"]["color"]
    assert colour["scale"]["domain"] == ["held", "photo", "sketch"], (
        "the first colour is the held-out domain's"
    )
    assert colour["legend"]["values"] == ["photo", "sketch"]
    assert len(to_png(panels["round 3"])) > 5000


@pytest.mark.parametrize(
    ("clients", "lines"), [(3, {"site 0", "site 1", "site 2"}), (30, {"mean of the clients"})]
)
def test_numbers_by_client_become_lines_or_their_mean(
    clients: int, lines: set[str], make_run: Callable[..., Path]
) -> None:
    folder = make_run(rounds=2)
    text = (folder / "records.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in text]
    for record in records:
        if record["event"] == "round":
            record["diagnostics"] = {"boda loss": {f"site {i}": float(i) for i in range(clients)}}
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    chart = vega_lite(draw_figures(read_run(folder))["diagnostics"]["boda loss"])
    rows = [row for values in chart["datasets"].values() for row in values if "series" in row]
    assert {row["series"] for row in rows} == lines
    assert sum(row["value"] for row in rows) / len(rows) == pytest.approx((clients - 1) / 2)
