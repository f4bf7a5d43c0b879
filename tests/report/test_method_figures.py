"""Figures of what methods record: layer weights, attention, distances and the transferability graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.report import draw_figures
from unseen.report.method_figures import attention, layer_weights, model_distances, transferability_layout
from unseen.report.png import to_png
from unseen.report.vega_bundle import vega_lite
from unseen.runs.reader import read_run

MakeRun = Callable[..., Path]


def rows_of(chart: Any) -> list[dict[str, Any]]:
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def rewrite(folder: Path, *, layers: int, clients: int, rounds: int = 3) -> Path:
    """Records of rounds with CSAC's layer weights, and distances in the first and the last."""
    names = [f"client {number}" for number in range(clients)]
    lines = []
    for number in range(1, rounds + 1):
        weights = [[(number + layer + k) / 100 for k in range(clients)] for layer in range(layers)]
        found: dict[str, Any] = {"layers": [f"layer {i}" for i in range(layers)], "layer_weights": weights}
        if number > 1:
            found["attention"] = {
                name: [[0.5 + k * number / 100, 0.5 - k * number / 100]] * 2 for k, name in enumerate(names)
            }
        record: dict[str, Any] = {"event": "round", "round": number, "clients": names, "diagnostics": found}
        if number in (1, rounds):
            record["distances"] = {
                "layers": found["layers"],
                "same_domain": [None] * layers,
                "other_domain": [number * (i + 1) for i in range(layers)],
            }
        lines.append(record)
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_weights_of_a_few_layers_over_the_rounds(make_run: MakeRun) -> None:
    panels = layer_weights(read_run(rewrite(make_run(), layers=9, clients=3)))
    assert list(panels) == ["layer 0", "layer 3", "layer 5", "layer 8"]
    rows = rows_of(panels["layer 8"])
    first = [row["value"] for row in rows if row["series"] == "client 0"]
    assert first == pytest.approx([0.09, 0.10, 0.11])
    assert {row["series"] for row in rows} == {"client 0", "client 1", "client 2"}


def test_a_crowd_of_clients_becomes_a_band(make_run: MakeRun) -> None:
    panels = layer_weights(read_run(rewrite(make_run(), layers=1, clients=30)))
    row = rows_of(panels["layer 0"])[0]
    assert row["series"] == "30 clients: mean and range"
    assert (row["low"], row["high"]) == pytest.approx((0.01, 0.30))


def test_distances_of_the_first_and_the_last_round(make_run: MakeRun) -> None:
    panels = model_distances(read_run(rewrite(make_run(), layers=2, clients=3)))
    assert list(panels) == ["round 1", "round 3"]
    rows = rows_of(panels["round 3"])
    assert [(row["name"], row["value"]) for row in rows] == [("layer 0", 3), ("layer 1", 6)]
    assert {row["series"] for row in rows} == {"clients of different domains"}


def test_runs_without_them_have_no_such_figure(make_run: MakeRun) -> None:
    run = read_run(make_run())
    assert layer_weights(run) == {}
    assert model_distances(run) == {}
    assert attention(run) == {}


def test_attention_of_the_first_and_the_last_calibration(make_run: MakeRun) -> None:
    panels = attention(read_run(rewrite(make_run(), layers=2, clients=3, rounds=4)))
    assert list(panels) == ["round 2", "round 4"], "there is none in acquisition"
    cells = {(row["down"], row["across"]): row for row in rows_of(panels["round 4"])}
    assert set(cells) == {(f"merged {i}", f"own {j}") for i in (1, 2) for j in (1, 2)}
    first = cells["merged 2", "own 1"]
    assert first["value"] == pytest.approx(0.54), "0.5, 0.54 and 0.58 at the three clients"
    assert first["span"] == "0.500 to 0.580"


@pytest.mark.parametrize("broken", [None, "text", {"a": [[0.5, None]]}, {"a": [[1.0]], "b": [[0.5, 0.5]]}])
def test_attention_that_makes_no_matrix_is_left_out(make_run: MakeRun, broken: Any) -> None:
    folder = make_run()
    line = {"event": "round", "round": 2, "clients": ["a", "b"], "diagnostics": {"attention": broken}}
    (folder / "records.jsonl").write_text(json.dumps(line) + "\n")
    assert attention(read_run(folder)) == {}


def test_layers_are_not_labelled_as_clients_where_there_are_as_many(make_run: MakeRun) -> None:
    figures = draw_figures(read_run(rewrite(make_run(), layers=3, clients=3)))
    assert "diagnostics" not in figures, "layer weights have a figure of their own, with the layers' names"
    assert list(figures["layer-weights"]) == ["layer 0", "layer 1", "layer 2"]


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
