"""Calling commands inside the test process, which is fast, or as processes, which can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def unseen(monkeypatch, capsys, tmp_path) -> Callable[..., Answer]:
    """Run a command in this process, in an empty folder."""
    from unseen.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["unseen", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


def _hear_ctrl_c() -> None:
    """A job in the background of a script is started deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def start_unseen(tmp_path) -> Callable[..., subprocess.Popen[str]]:
    """Start a command as a process."""

    def start(*arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "unseen", *map(str, arguments)],
            cwd=cwd or tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 (no threads here)
        )

    return start
