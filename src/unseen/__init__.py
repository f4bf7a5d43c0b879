"""Unseen: train one model across silos that cannot share data, evaluate it on a domain none has seen.

In a script or a notebook:

    import unseen

    result = unseen.train("rotated-digits", hold_out="75", method="fedavg", rounds=5)
    result.metrics["target"]["accuracy"]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from unseen.bench.bench_call import bench
    from unseen.bench.bench_result import BenchResult, load_bench
    from unseen.data import from_arrays
    from unseen.data.python_data import from_datasets, from_torch
    from unseen.judging import Judgement, judge
    from unseen.runner.run import RunResult, train
    from unseen.serving import load_model

__all__ = [
    "BenchResult",
    "Judgement",
    "RunResult",
    "__version__",
    "bench",
    "from_arrays",
    "from_datasets",
    "from_torch",
    "judge",
    "load_bench",
    "load_model",
    "train",
]
_HOMES = {
    "BenchResult": "unseen.bench.bench_result",
    "Judgement": "unseen.judging",
    "RunResult": "unseen.runner.run",
    "from_arrays": "unseen.data",
    "from_datasets": "unseen.data.python_data",
    "from_torch": "unseen.data.python_data",
    "judge": "unseen.judging",
    "load_bench": "unseen.bench.bench_result",
    "load_model": "unseen.serving",
    "train": "unseen.runner.run",
}


def __getattr__(name: str) -> Any:
    """Load the public calls on first use, so that `import unseen` and `unseen --help` are instant."""
    if name in ("bench", "sklearn"):
        return import_module(f"unseen.{name}")  # a package that can be called, a module of estimators
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'unseen' has no attribute {name!r}")
