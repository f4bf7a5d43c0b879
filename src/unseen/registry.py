"""Named things that users can ask for: one registry per kind, open to files and packages of other people.

A third party registers in one of two ways, and needs no change here:

- an installed package declares an entry point in the registry's group, for example
  `[project.entry-points."unseen.methods"] stay-near = "my_package.stay_near"`;
- a single file is named with `--plugin my_file.py` or in the environment variable `UNSEEN_PLUGINS`.

Either is imported on the first lookup; importing it runs its `register` decorators.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Generic, TypeVar

from unseen.errors import UsageError, unknown_name

T = TypeVar("T")
PLUGINS_VARIABLE = "UNSEEN_PLUGINS"
"""Environment variable with plugin files, separated as in PATH; worker processes inherit it."""


class Registry(Generic[T]):
    """Maps names to entries of one kind; filled by a decorator beside each entry's code.

    kind     what an entry is, for messages: "method"
    group    entry-point group that packages may register in: "unseen.methods"
    builtin  modules whose import registers the entries that come with Unseen; imported on first lookup
    """

    def __init__(self, kind: str, *, group: str, builtin: tuple[str, ...] = ()) -> None:
        self.kind, self.group, self.builtin = kind, group, builtin
        self._entries: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Enter the decorated object under `name`."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return enter

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

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
        """Import the built-in entries, then those of installed packages and plugin files, once."""
        if self._loaded:
            return
        self._loaded = True  # first, since what is imported may look names up itself
        for module in self.builtin:
            importlib.import_module(module)
        for point in entry_points(group=self.group):
            try:
                point.load()
            except Exception as error:
                raise UsageError(
                    f"the entry point {point.name!r} of group {self.group!r} cannot be loaded from "
                    f"{point.value}: {error}; mend or uninstall that package"
                ) from error
        load_plugin_files()


def add_plugin_files(paths: list[str]) -> None:
    """Name plugin files for this process and those it starts; they are imported on first lookup."""
    for path in paths:
        if not Path(path).is_file():
            raise UsageError(f"--plugin {path} is not a file; give a Python file that registers something")
    named = [path for path in os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep) if path]
    named += [absolute for path in paths if (absolute := str(Path(path).resolve())) not in named]
    if named:
        os.environ[PLUGINS_VARIABLE] = os.pathsep.join(named)


def load_plugin_files() -> None:
    """Import every file that UNSEEN_PLUGINS names; one that was imported already is left alone."""
    for name in os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep):
        if not name:
            continue
        path = Path(name).resolve()
        module_name = f"unseen_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        if module_name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UsageError(
                f"the plugin {name} is not a Python file; correct --plugin or {PLUGINS_VARIABLE}"
            )
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise UsageError(f"the plugin {name} cannot be imported: {error}") from error
