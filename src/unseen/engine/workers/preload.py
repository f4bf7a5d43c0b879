"""What the process that workers are forked from loads beforehand; imported nowhere else.

Freezing takes everything loaded so far out of the garbage collector's sight: its visits would write into
the pages that all workers share with this process, and so give each worker its own copy of them.
"""

import gc

import unseen.engine.workers.worker  # noqa: F401

gc.collect()
gc.freeze()
