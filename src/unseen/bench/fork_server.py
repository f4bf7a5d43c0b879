"""The process that a bench's workers are forked from; light to import, for it is started first of all."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

_PRELOAD = "unseen.bench.workers"


def start_server() -> ForkServerContext:
    """Start it if it does not run yet, so that it loads its libraries while others load theirs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOAD])
    forkserver.ensure_running()
    return context
