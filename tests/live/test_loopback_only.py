"""No process of a run that is watched and tracked connects to anything but this machine."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_pages import address, news

NOTE_ADDRESSES = '''"""Note the addresses that a process binds, connects to or looks up."""
import os
import sys

EVENTS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")


def note(event, values):
    if event in EVENTS:
        place = values[1] if event in EVENTS[:3] else values[0]
        with open(os.environ["NOTED"], "a") as noted:
            noted.write(repr((event, place)) + "\\n")


sys.addaudithook(note)
'''
LONG = 900.0
"""Seconds; long because machines that run tests are busy, and MLflow makes its database first."""
HERE = {"127.0.0.1", "::1", "localhost"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(NOTE_ADDRESSES)
    path = os.pathsep.join([str(tmp_path / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])])
    kept = {name: value for name, value in os.environ.items() if name != "UNSEEN_OFFLINE"}
    return {**kept, "PYTHONPATH": path, "NOTED": str(tmp_path / "noted")}


def noted(folder: Path) -> list[tuple[str, object]]:
    """What was noted, but for sockets in the file system."""
    lines = (folder / "noted").read_text().splitlines() if (folder / "noted").exists() else []
    found = [ast.literal_eval(line) for line in lines]
    return [(event, place) for event, place in found if isinstance(place, tuple) or "get" in event]


def elsewhere(folder: Path) -> list[tuple[str, object]]:
    hosts = (
        (event, place, place[0] if isinstance(place, tuple) else place) for event, place in noted(folder)
    )
    return [(event, place) for event, place, host in hosts if host not in HERE]


def test_an_address_elsewhere_is_noted(environment: dict[str, str], tmp_path: Path) -> None:
    reach_out = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    subprocess.run([sys.executable, "-c", reach_out], env=environment, check=False)
    assert elsewhere(tmp_path) == [("socket.connect", ("192.0.2.1", 9))]


def test_nothing_leaves_this_machine(environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    options = ("--rounds", "3", "--workers", "2", "--out", "run", "--live")
    tracked = ("--track", "tensorboard", "--track", "mlflow")
    command = [sys.executable, "-m", "unseen", "train", "rotated-digits", "--hold-out", "75"]
    process = subprocess.Popen(
        [*command, *options, *tracked],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert news(address(process))["state"]
        _, said = process.communicate(timeout=LONG)
        assert process.returncode == 0, said
    finally:
        process.kill()
        process.communicate()
    assert ("socket.bind", ("127.0.0.1", 0)) in noted(tmp_path), "the page's socket is not noted"
    assert elsewhere(tmp_path) == []
