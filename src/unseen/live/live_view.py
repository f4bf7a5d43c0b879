"""What a live page is told: parts as escaped HTML and charts, made again only when something has changed.

Cheap to import, so that the page has its address before the libraries that draw are loaded.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from unseen.errors import UnseenError

State = Literal["waiting", "running", "stopped", "finished"]
PARTS = ("header", "tiles", "result", "figures", "tables", "messages")
"""The places of the page, in their order; a view fills those it has something for."""
REPORT = "report"
"""Name of the page that is written at the end."""
_REST, _LONGEST_REST = 4.0, 5.0
"""After a look took some time, the next one is taken after this many times as long, or these seconds."""


@dataclass(frozen=True)
class LiveView:
    """One state of the page.

    parts   HTML by place; every text in it is escaped
    charts  Vega-Lite objects by the id of their box in the part `figures`
    """

    title: str
    parts: Mapping[str, str]
    charts: Mapping[str, Any] = field(default_factory=dict)


class Source(ABC):
    """Something that a page follows, by reading its folder."""

    @abstractmethod
    def look(self) -> str:
        """Read what is new; return a text that changes whenever the view would, such as a byte offset."""

    @property
    @abstractmethod
    def state(self) -> State:
        """The state that the last `look` found."""

    @property
    @abstractmethod
    def age(self) -> float:
        """Seconds since something was recorded."""

    @abstractmethod
    def view(self) -> LiveView:
        """Show what the last `look` found."""

    @abstractmethod
    def page(self, name: str) -> Path | None:
        """Return the file of another page that may be opened, such as `report`; None for any other name."""


class NewsDesk:
    """Answers the page's question for news, for any number of tabs with one view.

    open_source  makes the source, when it is first needed
    """

    def __init__(self, open_source: Callable[[], Source]) -> None:
        self._open = open_source
        self._source: Source | None = None
        self._lock = threading.Lock()
        self._news: dict[str, Any] = {}
        self._rests_until = 0.0

    def news(self, after: str = "") -> dict[str, Any]:
        """Return the view unless the version `after` is still the newest; then only that it is."""
        with self._lock:
            source = self.source
            if time.monotonic() >= self._rests_until:
                started = time.monotonic()
                version, error = self._look()
                if version != self._news.get("version"):
                    self._make(version, error)
                now = time.monotonic()
                self._rests_until = now + min(_REST * (now - started), _LONGEST_REST)
            short = {"state": source.state, "age": round(source.age, 1)}
            if after and after == self._news["version"]:
                return {"version": after, **short}
            return {**self._news, **short}

    @property
    def source(self) -> Source:
        """What the page follows."""
        if self._source is None:
            self._source = self._open()
        return self._source

    @property
    def finished(self) -> bool:
        """Whether what the page follows is complete."""
        with self._lock:
            self._look()
            return self.source.state == "finished"

    def page(self, name: str) -> Path | None:
        """Return the file of another page of the source."""
        with self._lock:
            return self.source.page(name)

    def _look(self) -> tuple[str, str]:
        """Return the version of what is there now, and why it cannot be read."""
        try:
            return f"{self.source.look()}.{self.source.state}", ""
        except UnseenError as error:
            return f"error.{error}", str(error)

    def _make(self, version: str, error: str) -> None:
        try:
            view = _complaint(error) if error else self.source.view()
        except UnseenError as found:
            view = _complaint(str(found))
        except Exception as found:  # a record that lacks something: the page says so, and goes on
            view = _complaint(f"{type(found).__name__}: {found}")
        parts = {name: view.parts.get(name, "") for name in PARTS}
        self._news = {
            "version": version,
            "title": view.title,
            "parts": parts,
            "charts": dict(view.charts),
        }


def _complaint(error: str) -> LiveView:
    from unseen.live.live_parts import header

    return LiveView("Unseen", {"header": header("Live", "The records cannot be read", [error])})
