"""`unseen` commands as real processes, ended for sure."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 240.0
"""Seconds; long because machines that run tests are busy. Nothing waits longer than it has to."""


class Commands:
    """Runs commands in one folder; those that stay are stopped at the end, as by Ctrl-C."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            _command(words), cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def start(self, name: str, *words: str | Path) -> None:
        with self.output(name).open("ab") as output:
            self.running[name] = subprocess.Popen(
                _command(words), cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )

    def output(self, name: str) -> Path:
        return self.folder / f"{name}.out"

    def wait_for(self, name: str, text: str) -> str:
        """Wait until a command has said something; return all it said."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            said = self.output(name).read_text(encoding="utf-8")
            if text in said:
                return said
            if self.running[name].poll() is not None:
                break
            time.sleep(0.2)
        raise AssertionError(f"{name} never said {text!r}, but: {said}")

    def stop(self, name: str, number: int = signal.SIGINT) -> int:
        process = self.running.pop(name)
        process.send_signal(number)
        try:
            return process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    def stop_all(self) -> None:
        for name in list(self.running)[::-1]:
            if self.running[name].poll() is None:
                self.stop(name)


def _command(words: tuple[str | Path, ...]) -> list[str]:
    return [sys.executable, "-m", "unseen", *map(str, words)]


def processes_that_mention(text: str) -> list[str]:
    """Command lines of running processes with some text in them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and folder.name != str(os.getpid()):
            found.append(line)
    return found
