"""Render self-contained pages from Jinja templates: they open from disk, offline, in light and dark mode.

The content security policy in the layout allows only our own two scripts, by their hashes, so that no name in
the data can run as code, and forbids every request. Templates escape every text that is not `Markup`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from unseen.report.theme import vega_config
from unseen.report.vega_bundle import vega_lite, vega_lite_version, vega_script

if TYPE_CHECKING:
    from jinja2 import Environment

    from unseen.report.charts import Panels
    from unseen.report.figures import Figure

LONG_TEXT = 24
"""Characters from which a column's texts may wrap."""


class Tile(NamedTuple):
    """One key number with its name and a hint; `hero` is the page's main number."""

    label: str
    value: object
    hint: str = ""
    hero: bool = False


class DataTable(NamedTuple):
    """A table for the macro `data_table`: columns after the first `text_columns` are numbers.

    tall  limits the height of its box
    lead  highlights the first row
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    text_columns: int = 1
    tall: bool = False
    lead: bool = False


class ImageCard(NamedTuple):
    """An image (PNG in base64) with a caption of three lines; `right` chooses its frame.

    overlay  the same image with an attribution map on top, shown below it; "" without one
    """

    png: str
    alt: str
    verdict: str
    answer: str
    hint: str
    right: bool
    title: str = ""
    overlay: str = ""


class PanelPlace(NamedTuple):
    """Element into which the page's script draws a chart."""

    key: str
    label: str


class FigurePlace(NamedTuple):
    """A figure as the templates see it."""

    title: str
    caption: str
    width: str
    panels: list[PanelPlace]


def render_page(
    template: str,
    *,
    package: str = "unseen.report",
    title: str,
    charts: Mapping[str, Any],
    follows: bool = False,
    **context: Any,
) -> str:
    """Render a page from a template that extends `layout.html.j2`.

    package  where the template is, in the folder `templates`; those of `unseen.report` are found as well
    charts   Vega-Lite objects by the key of their `PanelPlace`
    follows  whether the page asks the server it came from for news, which no other page may
    context  the template's own variables
    """
    drawn = {"charts": charts, "themes": {"light": vega_config("light"), "dark": vega_config("dark")}}
    data = json.dumps(drawn, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    library, script = "", ""
    if charts or follows:
        library, script = vega_script(vega_lite_version()), _asset("report.js")
    if follows:
        script += _asset("live.js")
    return environment(package).get_template(template).render(
        context,
        title=title,
        style=_asset("report.css"),
        chart_data=data,
        vega_script=library,
        page_script=script,
        follows=follows,
        script_hashes=" ".join(f"'sha256-{_digest(code)}'" for code in (library, script)),
    )  # fmt: skip


def place_figures(
    figures: Mapping[str, Figure[Any]], drawn: Mapping[str, Panels], *, prefix: str = ""
) -> tuple[list[FigurePlace], dict[str, Any]]:
    """Return a place for each drawn figure, for the macro `figure_list`, and the charts for `render_page`.

    prefix  distinguishes figures of the same name on one page
    """
    places, charts = [], {}
    for name, panels in drawn.items():
        figure = figures[name]
        boxes = []
        for position, (label, chart) in enumerate(panels.items(), start=1):
            key = f"chart-{prefix}{name}-{position}"
            description = f"{figure.title}: {label}" if label else figure.title
            charts[key] = vega_lite(chart) | {"description": description}
            boxes.append(PanelPlace(key, label))
        width = figure.width if len(panels) == 1 else "full"
        places.append(FigurePlace(figure.title, figure.caption, width, boxes))
    return places, charts


@cache
def environment(package: str) -> Environment:
    """Return the template environment of a package: it escapes everything and refuses undefined names."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(name) for name in dict.fromkeys((package, "unseen.report"))]
    made = Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["column_classes"] = column_classes
    return made


def column_classes(columns: int, rows: Sequence[Sequence[object]], text_columns: int) -> list[str]:
    """Return the CSS class of each column of a table: numbers, texts, or texts long enough to wrap."""
    return [
        "number" if column >= text_columns else _text_class([row[column] for row in rows])
        for column in range(columns)
    ]


def _text_class(cells: Sequence[object]) -> str:
    from markupsafe import escape

    return "text long" if any(len(escape(cell).striptags()) > LONG_TEXT for cell in cells) else "text"


def _digest(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return files("unseen.report").joinpath("assets", name).read_text(encoding="utf-8")
