"""Small pieces of HTML; every text is escaped unless it already is `Markup`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

LONG = 24


class Markup(str):
    """Text that is HTML already and must not be escaped again."""

    __slots__ = ()


def esc(text: object) -> Markup:
    """Make any text safe to stand in HTML, attributes included."""
    return text if isinstance(text, Markup) else Markup(html.escape(str(text), quote=True))


def tag(name: str, *children: object, **attributes: str | bool | None) -> Markup:
    """An element; `class_` gives the class, `data_x` the attribute data-x, True one without a value."""
    written = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            label = key.rstrip("_").replace("_", "-")
            written += f" {label}" if value is True else f' {label}="{esc(value)}"'
    inner = join(children)
    return Markup(f"<{name}{written}>{inner}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Pieces one after another, each escaped if needed."""
    return Markup("".join(esc(part) for part in parts))


def table(
    headers: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    text_columns: int = 1,
    tall: bool = False,
    lead: bool = False,
) -> Markup:
    """A table in its own scrolling box.

    Columns after the first `text_columns` are numbers; `tall` limits the height of the box; `lead` sets
    off the first row.
    """
    kinds = [_kind([row[i] for row in rows]) if i < text_columns else "number" for i in range(len(headers))]
    head = join(tag("th", name, scope="col", class_=kind) for name, kind in zip(headers, kinds, strict=True))
    body = []
    for position, row in enumerate(rows):
        first = tag("th", row[0], scope="row", class_=kinds[0])
        strong = "lead" if lead and position == 0 else None
        cells = zip(row[1:], kinds[1:], strict=True)
        body.append(tag("tr", first, *(tag("td", cell, class_=kind) for cell, kind in cells), class_=strong))
    grid = tag("table", tag("thead", tag("tr", head)), tag("tbody", *body))
    return tag("div", grid, class_="scroll tall" if tall else "scroll", tabindex="0", role="group")


def _kind(cells: Sequence[object]) -> str:
    seen = (re.sub(r"<[^>]*>", "", esc(cell)) for cell in cells)
    return "text long" if any(len(text) > LONG for text in seen) else "text"


def section(title: str, *children: object, id_: str | None = None) -> Markup:
    """A titled part of the page; nothing at all when it has no content."""
    content = join(children)
    return tag("section", tag("h2", title), content, id_=id_) if content else Markup("")


def tile(label: object, value: object, hint: object = "", *, hero: bool = False) -> Markup:
    """One key number with its name and what to know about it."""
    return tag(
        "div",
        tag("dt", label),
        tag("dd", tag("span", value, class_="value"), tag("span", hint, class_="hint") if hint else ""),
        class_="tile hero" if hero else "tile",
    )
