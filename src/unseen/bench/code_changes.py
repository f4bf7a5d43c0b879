"""Methods that were changed in a notebook between two calls: their finished jobs are of other code.

Jobs are named by their configuration, which does not contain the code of a method. For methods of installed
packages that is right: versions are recorded. A cell has no version, so its code is compared.
"""

from __future__ import annotations

import hashlib
import json
from types import CodeType, FunctionType
from typing import Any

from unseen.bench.bench_folder import BenchFolder
from unseen.bench.grid import Grid
from unseen.errors import UsageError
from unseen.fileio import write_json
from unseen.methods import METHODS
from unseen.registry import SESSION

_FILE = "session_methods.json"


def require_same_code(grid: Grid, folder: BenchFolder) -> None:
    """Refuse to mix results of a method with those of its earlier code; record the code of new ones."""
    path = folder.path / _FILE
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    named = {str(options.get("method", label)) for label, options in grid.methods.items()}
    own = METHODS.foreign_entries()
    now = {name: fingerprint_code(own[name][0]) for name in named if name in own and own[name][1] == SESSION}
    changed = sorted(name for name, code in now.items() if known.get(name, code) != code)
    if changed:
        raise UsageError(
            f"{folder.path} has jobs of an earlier definition of {', '.join(changed)}: choose another "
            "out=..., or give the new one another name"
        )
    if now:
        write_json(path, {**known, **now})


def fingerprint_code(entry: Any) -> str:
    """Hash the code of a class or function, and of what it uses from the session; comments do not count."""
    digest, seen = hashlib.sha256(), set[int]()
    waiting = [entry]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            digest.update(value.__qualname__.encode())
            waiting += [base for base in value.__mro__[1:] if base.__module__ == SESSION]
            waiting += [item for name, item in sorted(vars(value).items()) if _is_own(name, item)]
        elif isinstance(value, FunctionType):
            digest.update(repr((value.__defaults__, value.__kwdefaults__)).encode())
            for code in _nested(value.__code__):
                plain = [item for item in code.co_consts if not isinstance(item, CodeType)]
                digest.update(code.co_code + repr((plain, code.co_names)).encode())
                waiting += [
                    value.__globals__[name]
                    for name in code.co_names
                    if getattr(value.__globals__.get(name), "__module__", None) == SESSION
                ]
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()[:16]


def _is_own(name: str, item: Any) -> bool:
    """Check whether an attribute of a class says what it does: its functions and its plain values."""
    plain = isinstance(item, str | int | float | bool | tuple | None | FunctionType)
    return plain and name not in ("__doc__", "__module__", "__firstlineno__")


def _nested(code: CodeType) -> list[CodeType]:
    """List a code object and all those inside it."""
    inner = [item for item in code.co_consts if isinstance(item, CodeType)]
    return [code, *(nested for item in inner for nested in _nested(item))]
