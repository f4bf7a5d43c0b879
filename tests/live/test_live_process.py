"""`--live` on a real run: the same bits, an address on stderr, and a page that ends with what it follows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from real_pages import PATIENCE, RUN, URL, address, is_gone, news, started, until

from unseen.live.page_address import ADDRESS, read_address


def test_weights_are_the_same_bits_and_the_page_ends_by_itself(tmp_path: Path) -> None:
    said = {}
    for name, more in (("plain", ()), ("followed", ("--live",))):
        done = subprocess.run(
            [sys.executable, "-m", "unseen", *RUN, "--rounds", "2", "--out", name, "--json", *more],
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        assert json.loads(done.stdout)["folder"] == name
        said[name] = done.stderr
    assert URL.findall(said["plain"]) == []
    (url,) = URL.findall(said["followed"])
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in said]
    assert weights[0] == weights[1]
    until(lambda: is_gone(url))
    until(lambda: not (tmp_path / "followed" / ADDRESS).exists())
    kept = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in said]
    assert kept[0] == kept[1]


def test_a_killed_run_takes_its_page_along_and_resumes_at_the_same_address(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with started(tmp_path, *RUN, "--rounds", "400", "--out", out, "--live") as process:
        url = address(process)
        assert news(url)["state"] == "running"
        until((out / "checkpoints" / "latest.safetensors").exists)
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: is_gone(url))
    assert read_address(out) is not None
    with started(tmp_path, "train", "--resume", "--out", out, "--live") as process:
        assert address(process) == url
        process.send_signal(signal.SIGINT)
        process.wait()
        until(lambda: is_gone(url))
    assert read_address(out) is not None, "an unfinished run keeps its address"


def test_a_run_can_be_followed_from_another_terminal(running_run: Path) -> None:
    with started(running_run.parent, "live", running_run) as process:
        url = address(process)
        assert news(url)["state"] == "running"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert not (running_run / ADDRESS).exists()
