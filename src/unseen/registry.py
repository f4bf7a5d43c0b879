"""A table of named things that users can ask for; a wrong name is refused with the nearest right one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from unseen.errors import unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps names to entries of one kind; filled by a decorator beside each entry's code."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Enter the decorated object under `name`."""

        def enter(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return enter

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
