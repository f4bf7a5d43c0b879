"""Modules that the fork server loads before it forks workers; imported nowhere else.

Freezing hides everything loaded so far from the garbage collector, which would otherwise write to the
pages that all workers share with this process, and so give each worker its own copy of them.
"""

import gc

import unseen.engine.workers.worker  # noqa: F401

gc.collect()
gc.freeze()
