"""App processes end with the Flower process that they work for, also in the middle of sending.

Flower tells its app processes whom they work for (`--parent-pid`) and interrupts them when that one is gone.
In the middle of sending the interrupt is lost: the process tries again for ever, and whoever follows its run
waits.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

LOOK_SECONDS, GRACE_SECONDS = 0.5, 3.0
OPTION = "--parent-pid"


def leave_with_parent() -> None:
    """End this process, at once and for sure, a moment after the one that its command line names."""
    if OPTION in sys.argv[:-1]:
        parent = Path("/proc") / sys.argv[sys.argv.index(OPTION) + 1]
        if parent.exists():
            threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: Path) -> None:
    while parent.exists():
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
