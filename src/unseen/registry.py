"""Registries of named components, one per kind, that third-party files and packages can extend.

Third-party code registers in one of two ways, without any change here:

- an installed package declares an entry point in the registry's group, for example
  `[project.entry-points."unseen.methods"] stay-near = "my_package.stay_near"`;
- a single file is named with `--plugin my_file.py` or in the environment variable `UNSEEN_PLUGINS`.

Either is imported on the first lookup; importing it runs its `register` decorators. What a notebook cell or a
script registers itself reaches worker processes by `unseen.session_parts`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

from unseen.errors import UsageError, unknown_name

T = TypeVar("T")
REGISTRIES = {
    "methods": "unseen.methods.base:METHODS",
    "models": "unseen.models.factory:MODELS",
    "data": "unseen.data.sources:SOURCES",
    "optimizers": "unseen.training.optimizers:OPTIMIZERS",
    "schedules": "unseen.training.schedules:SCHEDULES",
    "gradient-rules": "unseen.training.gradient_rules:GRADIENT_RULES",
    "averages": "unseen.aggregation.model_averaging:AVERAGES",
    "aggregators": "unseen.aggregation.aggregators:AGGREGATORS",
    "augmentations": "unseen.data.augment:AUGMENTATIONS",
    "partitions": "unseen.federation.partition:PARTITIONS",
    "metrics": "unseen.tasks.metrics:METRICS",
    "selection-rules": "unseen.evaluation.selection:SELECTION_RULES",
    "tasks": "unseen.tasks.base:TASKS",
    "protections": "unseen.privacy.base:PROTECTIONS",
    "callbacks": "unseen.callbacks.base:CALLBACKS",
    "figures": "unseen.report.figures:FIGURES",
    "formats": "unseen.data.formats:FORMATS",
}
"""Kind, as in `unseen list KIND` -> module and attribute of its registry; imported on demand."""
SESSION = "__main__"
"""Name of the module that a notebook's cells, an interactive session or a script run in."""
PLUGINS_VARIABLE = "UNSEEN_PLUGINS"
"""Environment variable with plugin files, separated as in PATH; worker processes inherit it."""
_PLUGIN_PREFIX = "unseen_plugin_"


class Registry(Generic[T]):
    """Maps names to entries of one kind; filled by a decorator next to each entry's code.

    kind     what an entry is, for messages: "method"
    group    entry-point group that packages may register in: "unseen.methods"
    builtin  modules whose import registers the entries that come with Unseen; imported on first lookup
    """

    def __init__(self, kind: str, *, group: str, builtin: tuple[str, ...] = ()) -> None:
        self.kind, self.group, self.builtin = kind, group, builtin
        self._entries: dict[str, T] = {}
        self._homes: dict[str, str] = {}
        self._unusable: dict[str, str] = {}
        self._loaded = False
        self._plugins = ""

    def register(self, name: str) -> Callable[[T], T]:
        """Register the decorated object under `name`.

        A definition that is run again, such as a notebook's cell or a reloaded module, replaces its former
        self; any other second entry of a name is refused.
        """

        def enter(entry: T) -> T:
            home = _registering_module()
            if home == SESSION:
                self._load()  # so that this entry is refused, and not the built-in one that comes later
            if name in self._entries and not self._is_run_again(name, entry, home):
                raise UsageError(
                    f"{self.kind} {name!r} is registered by {self._homes[name]} already; give that of {home} "
                    "another name"
                )
            self._entries[name], self._homes[name] = entry, home
            return entry

        return enter

    def _is_run_again(self, name: str, entry: T, home: str) -> bool:
        """Check whether an entry comes from the same place as the one it would replace."""
        former = self._entries[name]
        same_name = getattr(former, "__qualname__", None) == getattr(entry, "__qualname__", "")
        return home == self._homes[name] and (home == SESSION or same_name)

    def foreign_entries(self) -> dict[str, tuple[T, str]]:
        """Map names to entries and their modules, for those that neither Unseen nor a plugin file brought."""
        return {
            name: (entry, home)
            for name, entry in self._entries.items()
            if (home := self._homes.get(name, "unseen")).partition(".")[0] != "unseen"
            and not home.startswith(_PLUGIN_PREFIX)
        }

    def enter_from_session(self, name: str, entry: T) -> None:
        """Enter what another process of this session registered; it was checked there."""
        self._load()
        self._entries[name], self._homes[name] = entry, SESSION

    def refuse(self, name: str, reason: str) -> None:
        """Refuse lookups of a name for a reason: its entry could not be brought to this process."""
        self._unusable[name] = reason

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._entries and name in self._unusable:
            raise UsageError(self._unusable[name])
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def check(self, value: str) -> None:
        """Refuse the value of an option that names an entry."""
        self[value]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        """Import the built-in entries, then those of installed packages and plugin files, each once."""
        plugins = os.environ.get(PLUGINS_VARIABLE, "")
        loaded, changed = self._loaded, plugins != self._plugins
        self._loaded, self._plugins = True, plugins  # set first: imported modules may look up names
        if changed and loaded:
            load_plugin_files()
        if loaded:
            return
        from importlib.metadata import entry_points

        for module in self.builtin:
            importlib.import_module(module)
        for point in entry_points(group=self.group):
            try:
                point.load()
            except Exception as error:
                raise UsageError(
                    f"the entry point {point.name!r} of group {self.group!r} cannot be loaded from "
                    f"{point.value}: {error}; fix or uninstall that package"
                ) from error
        load_plugin_files()


def add_plugin_files(paths: list[str]) -> None:
    """Set the plugin files of this process and its child processes; they are imported on first lookup."""
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"--plugin {path} is not a file; give a Python file that registers something")
    named = _plugin_files()
    named += [absolute for path in paths if (absolute := str(Path(path).resolve())) not in named]
    if named:
        os.environ[PLUGINS_VARIABLE] = os.pathsep.join(named)


def load_plugin_files() -> None:
    """Import every file named in UNSEEN_PLUGINS that is not imported yet."""
    for name in _plugin_files():
        if not Path(name).is_file():
            raise UsageError(
                f"the plugin {name} is not a Python file; correct --plugin or {PLUGINS_VARIABLE}"
            )
        try:
            importlib.import_module(_module_name(name))
        except (Exception, SystemExit) as error:
            raise UsageError(f"the plugin {name} cannot be imported: {error}") from error


def find_registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind such as "methods"."""
    if kind not in REGISTRIES:
        raise unknown_name("kind", kind, REGISTRIES)
    module, _, attribute = REGISTRIES[kind].partition(":")
    registry: Registry[Any] = getattr(importlib.import_module(module), attribute)
    return registry


class _PluginFinder(MetaPathFinder):
    """Finds plugin files by module name, so that worker processes can unpickle what a plugin defines."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a file that UNSEEN_PLUGINS names."""
        if fullname.startswith(_PLUGIN_PREFIX):
            for name in _plugin_files():
                if _module_name(name) == fullname:
                    return importlib.util.spec_from_file_location(fullname, Path(name).resolve())
        return None


def _registering_module() -> str:
    """Find the module whose code registers an entry: the first caller that is not one of our helpers."""
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] != "unseen" or frame.f_locals is frame.f_globals:
            break
        frame = frame.f_back
    return name


def _plugin_files() -> list[str]:
    return [name for name in os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep) if name]


def _module_name(file: str) -> str:
    path = Path(file).resolve()
    return f"{_PLUGIN_PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


sys.meta_path.append(_PluginFinder())
