"""Parts that a session defines itself, in a notebook's cell or a script, brought to its worker processes.

A worker process cannot import a notebook, and running a script again in every worker would repeat its work.
So what `__main__` defines is pickled by value: classes and functions with their code. Modules that a
session imported and that register something are imported in the worker as well.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from unseen import hparams
from unseen.errors import UsageError
from unseen.registry import REGISTRIES, SESSION, Registry, find_registry


@dataclasses.dataclass(frozen=True)
class SessionParts:
    """What a worker process has to know of its session.

    modules  imported modules that register something
    packed   (kind of registry, name) -> entry, pickled by value
    refused  (kind of registry, name) -> why it cannot be pickled
    """

    modules: tuple[str, ...]
    packed: dict[tuple[str, str], bytes]
    refused: dict[tuple[str, str], str]

    def install(self) -> None:
        """Register the parts in this process; those that did not arrive say why when they are used."""
        for module in self.modules:
            with suppress(Exception):  # a part of it that is needed is then reported as unknown
                importlib.import_module(module)
        for (kind, name), content in self.packed.items():
            try:
                find_registry(kind).enter_from_session(name, pickle.loads(content))
            except Exception as error:
                find_registry(kind).refuse(name, _explain(f"{kind} {name!r}", error))
        for (kind, name), reason in self.refused.items():
            find_registry(kind).refuse(name, reason)


def find_session_parts() -> SessionParts:
    """Find what this session registered beyond Unseen, installed packages and plugin files."""
    modules, packed, refused = dict[str, None](), dict[tuple[str, str], bytes](), dict[tuple[str, str], str]()
    for kind, registry in _loaded_registries():
        for name, (entry, home) in registry.foreign_entries().items():
            local = "<locals>" in getattr(entry, "__qualname__", "")
            if home != SESSION and not local:
                modules[home] = None
                continue
            try:
                packed[kind, name] = pickle_by_value(entry, what=f"{registry.kind} {name!r}")
            except UsageError as error:
                refused[kind, name] = str(error)
    return SessionParts(tuple(modules), packed, refused)


def pickle_by_value(value: Any, *, what: str) -> bytes:
    """Pickle a value together with the code of what `__main__` defines; `what` names it in an error."""
    buffer = io.BytesIO()
    try:
        _pickler()(buffer).dump(value)
    except Exception as error:
        raise UsageError(_explain(what, error)) from error
    return buffer.getvalue()


def _explain(what: str, error: Exception) -> str:
    """Explain why a part cannot be brought to worker processes, and the ways out."""
    reason = " ".join(str(error).split())
    return (
        f"{what} cannot be sent to worker processes ({reason}): leave such objects out of its code, train "
        "with workers=1, or put it into a file that you import"
    )


def _loaded_registries() -> Iterator[tuple[str, Registry[Any]]]:
    """Yield the registries whose modules are imported: the others have no entries yet."""
    for kind, place in REGISTRIES.items():
        if place.partition(":")[0] in sys.modules:
            yield kind, find_registry(kind)


def _pickler() -> type[pickle.Pickler]:
    """Extend cloudpickle, which scikit-learn's joblib brings, by what must stay the one object it is."""
    try:
        import cloudpickle
    except ImportError:  # older versions of joblib have a copy
        from joblib.externals import cloudpickle

    singletons = {id(dataclasses.MISSING): "dataclasses:MISSING", id(hparams.SAME): "unseen.hparams:SAME"}

    class ByValuePickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Refers to registries and to markers of missing values instead of copying them."""

        def reducer_override(self, obj: Any) -> Any:
            """Say how an object is rebuilt; `NotImplemented` leaves it to cloudpickle."""
            if id(obj) in singletons:
                return _find, (singletons[id(obj)],)
            if isinstance(obj, Registry):
                for kind, registry in _loaded_registries():
                    if registry is obj:
                        return find_registry, (kind,)
            return super().reducer_override(obj)

    return ByValuePickler


def _find(place: str) -> Any:
    """Return what stands at "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
