"""Keeps freed memory inside the process: training allocates the same buffers again in the next step.

The C library otherwise returns large blocks to the system after every step and faults them in again.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEEP_BELOW = 512 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Tell glibc's allocator; elsewhere there is nothing to do. Returns whether it took effect."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _KEEP_BELOW)) and bool(mallopt(_TRIM_THRESHOLD, _KEEP_BELOW))
