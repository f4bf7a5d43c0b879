"""Children end with their parent, and starting them leaves the user's script alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from unseen.child_processes import hide_main_module

PROGRAM = """
import os, sys, time
from unseen.child_processes import exit_with_parent, start_fork_server

def sleep_long(pipe):
    exit_with_parent()
    pipe.send(os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    context = start_fork_server("json")
    ours, theirs = context.Pipe()
    child = context.Process(target=sleep_long, args=(theirs,))
    child.start()
    print(ours.recv(), flush=True)
    os._exit(0)
"""


def test_a_busy_child_ends_when_its_parent_is_gone(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    child = int(done.stdout)
    until = time.monotonic() + 30
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(child)


def test_the_main_module_is_hidden_and_comes_back():
    main = sys.modules["__main__"]
    before = (getattr(main, "__file__", None), main.__spec__)
    with hide_main_module():
        assert main.__spec__ is None and not hasattr(main, "__file__")
    assert (getattr(main, "__file__", None), main.__spec__) == before


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
