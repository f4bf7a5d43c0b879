"""Unseen: one model trained across silos that cannot share data, judged on a domain none has seen.

import unseen
result = unseen.train("rotated-digits", hold_out="75", method="fedavg", rounds=5)
result.metrics["target"]["accuracy"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unseen.runner.api import RunResult, from_arrays, load_model, train

__all__ = ["RunResult", "__version__", "from_arrays", "load_model", "train"]


def __getattr__(name: str) -> Any:
    """Load the public calls on first use, so that `import unseen` and `unseen --help` are instant."""
    if name in __all__:
        from unseen.runner import api

        return getattr(api, name)
    raise AttributeError(f"module 'unseen' has no attribute {name!r}")
