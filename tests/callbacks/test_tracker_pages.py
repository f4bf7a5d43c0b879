"""The pages of TensorBoard and MLflow in a real browser, while a real run writes what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loopback_servers import PATIENCE, answers, free_port, running, until

from browsing import requests, set_screen, wait_for

pytestmark = pytest.mark.browser
TRAIN = ("unseen", "train", "rotated-digits", "--hold-out", "75", "--rounds", "5000", "--workers", "1")


def watch(browser: Any, address: str, page: str, words: str) -> None:
    """Open a page until it shows the words; it may ask nobody but its server."""
    set_screen(browser, 1280)
    browser.get("about:blank")
    browser.get_log("performance")
    browser.get(f"{address}/{page}")
    wait_for(browser, f"return document.body.innerText.includes('{words}')", seconds=PATIENCE)
    asked = [url for url in requests(browser) if url.startswith("http")]
    assert asked
    assert all(url.startswith(f"{address}/") for url in asked)


def test_tensorboard_shows_a_run_that_trains(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    address, out = f"http://127.0.0.1:{free_port()}", tmp_path / "run"
    place = ("--logdir", str(out), "--host", "127.0.0.1", "--port", address.rpartition(":")[2])
    board = ("tensorboard.main", *place, "--reload_interval", "1")
    with running(tmp_path, *TRAIN, "--out", str(out), "--track", "tensorboard") as run:
        until((out / "tensorboard").exists, run)
        with running(tmp_path, *board) as process:
            until(lambda: answers(address), process)
            watch(browser, address, "#timeseries", "accuracy/target")
            assert run.poll() is None, "the run ended before its page was seen"


def test_mlflow_shows_a_run_that_trains(server: str, browser: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (*TRAIN, "--out", str(out), "--track", "mlflow")
    with running(tmp_path, *words, MLFLOW_TRACKING_URI=server) as run:
        until((out / "tracking.json").exists, run)
        watch(browser, server, "#/experiments/1/runs", "fedavg/75/0")
        assert run.poll() is None, "the run ended before its page was seen"
