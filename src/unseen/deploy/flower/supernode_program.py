"""A site's SuperNode, which asks for messages more often while a run is under way.

Flower's own asks every 3 seconds. Here pauses start short after an answer and double up to that, so that a
round does not wait for a site that is idle already, and a site without work asks as rarely as before.

    python -m unseen.deploy.flower.supernode_program ...    takes the arguments of `flower-supernode`
"""

from __future__ import annotations

import time

from unseen.deploy.flower.compat import run_supernode

FIRST_PAUSE, REPLY_PAUSE = 0.25, 0.2
"""Seconds before the first question after an answer, and between looks for the answer of a client process."""


class Pauses:
    """What the SuperNode's loop uses of the module `time`."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def sleep(self, seconds: float) -> None:
        """Sleep for at most `seconds`: Flower's pause between questions, or a short one for an answer."""
        if seconds < 1:
            self._next = FIRST_PAUSE
            time.sleep(min(seconds, REPLY_PAUSE))
        else:
            time.sleep(min(seconds, self._next))
            self._next = min(2 * self._next, seconds)


if __name__ == "__main__":
    run_supernode(Pauses())
