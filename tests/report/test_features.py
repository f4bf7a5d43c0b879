"""Features in the plane: computed once from data and model, drawn from the run folder alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unseen
from unseen.errors import UnseenError, UsageError
from unseen.report import write_figures, write_report
from unseen.report.embedding import feature_maps
from unseen.runner.features import embed, write_features
from unseen.runs.reader import read_run


@pytest.fixture
def tiny_run(tmp_path: Path, make_tiny_data: Callable[..., Any]) -> tuple[Path, Any]:
    data, folder = make_tiny_data(per_class=20), tmp_path / "run"
    unseen.train(data, hold_out="held", rounds=4, lr=0.05, local_epochs=3, model="mnist-cnn", out=folder)
    return folder, data


def nearest_agree(points: Any, names: list[Any]) -> float:
    """Share of points whose nearest neighbour has the same name."""
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    return float(np.mean(np.array(names)[distances.argmin(axis=1)] == np.array(names)))


def test_features_of_a_run(tiny_run: tuple[Path, Any]) -> None:
    folder, data = tiny_run
    found = json.loads(write_features(folder, data=data).read_text())
    assert set(found["stages"]) == {"before", "after"}
    counts = {name: found["domain"].count(number) for number, name in enumerate(found["domains"])}
    assert counts["held"] == 60
    assert counts["a"] == counts["b"] == counts["c"] > 4
    before, after = (
        np.stack([found["stages"][stage]["x"], found["stages"][stage]["y"]], axis=1)
        for stage in ("before", "after")
    )
    assert before.shape == after.shape == (len(found["domain"]), 2)
    assert nearest_agree(after, found["target"]) > 0.9
    assert not np.allclose(before, after)


def test_the_same_run_gives_the_same_points(tiny_run: tuple[Path, Any]) -> None:
    folder, data = tiny_run
    first = write_features(folder, data=data).read_text()
    assert write_features(folder, data=data).read_text() == first


def test_the_report_draws_them_from_the_folder_alone(tiny_run: tuple[Path, Any], tmp_path: Path) -> None:
    folder, data = tiny_run
    write_features(folder, data=data)
    panels = feature_maps(read_run(folder))
    assert list(panels) == [
        f"by {kind}, {stage} training" for kind in ("class", "domain") for stage in ("before", "after")
    ]
    (rows,) = panels["by domain, after training"].to_dict()["datasets"].values()
    assert {row["series"] for row in rows} == {"a", "b", "c", "held (held out)"}
    names = {path.name for path in write_figures(folder, tmp_path / "figures")}
    assert "features-by-class-after-training.png" in names
    assert "Features (t-SNE)" in write_report(folder).read_text()


def test_other_data_is_refused(tiny_run: tuple[Path, Any], make_tiny_data: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="trained on other data"):
        write_features(tiny_run[0], data=make_tiny_data(per_class=21))


def test_an_unfinished_run_is_refused(make_run: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="no finished run"):
        write_features(make_run(finished=False))


def test_a_run_without_features_has_no_such_figure(make_run: Callable[..., Path]) -> None:
    assert feature_maps(read_run(make_run())) == {}


def test_a_damaged_file_is_named(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    (folder / "features.json").write_text('{"domains": 3}')
    with pytest.raises(UnseenError, match=r"features\.json is damaged"):
        feature_maps(read_run(folder))


def test_tsne_keeps_clusters_together() -> None:
    draw = np.random.default_rng(0)
    names = [number % 3 for number in range(60)]
    features = draw.normal(0, 0.1, (60, 20)).astype(np.float32) + 5 * np.eye(3, 20, dtype=np.float32)[names]
    assert nearest_agree(embed(features), names) == 1.0


@pytest.mark.parametrize("count", [1, 3, 5])
def test_few_or_equal_samples_have_points_too(count: int) -> None:
    assert embed(np.ones((count, 4), dtype=np.float32)).shape == (count, 2)
    assert np.isfinite(embed(np.arange(4 * count, dtype=np.float32).reshape(count, 4))).all()
