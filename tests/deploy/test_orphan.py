"""An app process must not outlive the Flower process it works for, even deaf to interrupts."""

from __future__ import annotations

import subprocess
import sys

import pytest

DEAF = """
import signal, sys, time
from unseen.deploy.flower.compat import leave_with_parent
signal.signal(signal.SIGINT, signal.SIG_IGN)
leave_with_parent()
print("started", flush=True)
time.sleep(float(sys.argv[1]))
"""


def start(seconds: float, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DEAF, str(seconds), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def test_a_deaf_process_ends_with_the_one_it_works_for() -> None:
    master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    servant = start(600, "--parent-pid", str(master.pid))
    assert servant.poll() is None
    master.kill()
    master.wait()
    assert servant.wait(60) == 1


@pytest.mark.parametrize("options", [(), ("--parent-pid",)])
def test_without_a_named_master_nothing_happens(options: tuple[str, ...]) -> None:
    assert start(0.1, *options).wait(60) == 0


def test_it_lives_as_long_as_its_master() -> None:
    master = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    servant = start(5, "--parent-pid", str(master.pid))
    assert servant.wait(60) == 0
    master.kill()
    master.wait()
