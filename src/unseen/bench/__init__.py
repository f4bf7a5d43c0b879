"""Benches: many runs (methods, held-out domains, seeds), their tables, figures and statistics.

The package can be called: `unseen.bench(...)` is `unseen.bench.bench_call.bench`.
"""

import sys
from types import ModuleType
from typing import Any

WORKERS = "unseen.bench.workers"
"""Module that the fork server preloads, named here so that starting it imports none of its libraries."""


class _CallableModule(ModuleType):
    """A module that runs a bench when it is called; `unseen.bench` names both."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from unseen.bench.bench_call import bench

        return bench(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
