"""Child processes: the fork server that starts them quickly, and their end together with the parent.

Cheap to import: the fork server is started first, so that it loads its libraries while the parent loads its
own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from threading import Thread


def start_fork_server(preload: str) -> ForkServerContext:
    """Start the fork server unless it is running, and have it import `preload`."""
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    with hide_main_module():
        forkserver.ensure_running()
    return context


@contextmanager
def hide_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every new process.

    A script without `if __name__ == "__main__"` would start itself over and over, and a long one costs time.
    """
    main = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        main.__spec__ = None
        if "__file__" in kept:
            del main.__file__
        yield
    finally:
        for name, value in kept.items():
            setattr(main, name, value)


def exit_with_parent() -> None:
    """End this multiprocessing child as soon as its parent has ended, whatever it is doing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        exit_after(lambda: wait([parent.sentinel]))


def exit_after(wait_for_end: Callable[[], object], *, grace_seconds: float = 0.0) -> None:
    """End this process without cleanup after `wait_for_end` (called in a thread) and the grace period."""

    def watch() -> None:
        wait_for_end()
        time.sleep(grace_seconds)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
