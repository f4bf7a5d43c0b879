"""The parts of a live page as HTML, by the same macros as the report's; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from unseen.live.live_view import PARTS
from unseen.report.page import DataTable, Tile, environment, render_page


def shell() -> str:
    """Render the page without content; its script asks for that."""
    return render_page(
        "live.html.j2", package="unseen.live", title="Unseen", charts={}, follows=True, places=PARTS
    )


def header(kind: str, headline: object, about: Sequence[object]) -> str:
    """Render the top of the page."""
    return _render("header", kind, headline, about)


def tile_row(tiles: Sequence[Tile]) -> str:
    """Render key numbers."""
    return _render("tiles", tiles)


def table_section(title: str, data: DataTable | None, *, note: str = "", link: str = "") -> str:
    """Render a titled table; nothing if it has no rows.

    link  name of a page on the same server, for the words that follow the note
    """
    return _render("table_section", title, data, note, link)


def list_section(title: str, texts: Sequence[str]) -> str:
    """Render a titled list; nothing if it is empty."""
    return _render("list_section", title, texts)


def figure_section(places: Sequence[object]) -> str:
    """Render the boxes of the charts."""
    return _render("figure_section", places)


def link_section(link: str, words: str) -> str:
    """Render a link to a page on the same server."""
    return _render("link_section", link, words)


def _render(macro: str, *arguments: object) -> str:
    module = environment("unseen.live").get_template("live_parts.html.j2").module
    return str(getattr(module, macro)(*arguments)).strip()
