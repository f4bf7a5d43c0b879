"""The template environment that all pages share: everything is escaped, nothing is left undefined."""

from __future__ import annotations

from importlib.resources import files

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from unseen.report.page import DataTable, FigurePlace, ImageCard, PanelPlace, Tile, environment

NASTY = "\"><script>alert('x')</script>"
CALLS = {
    "page_header": (NASTY, NASTY, [NASTY, ""]),
    "bullets": ([NASTY],),
    "note": (NASTY,),
    "code_block": (NASTY,),
    "data_table": (DataTable([NASTY], [[NASTY], [NASTY]], lead=True),),
    "tile_list": ([Tile(NASTY, NASTY, NASTY, hero=True)],),
    "figure_list": ([FigurePlace(NASTY, NASTY, "half", [PanelPlace(NASTY, NASTY)])],),
    "image_card": (ImageCard(NASTY, NASTY, NASTY, NASTY, NASTY, right=False, title=NASTY),),
}


@pytest.mark.parametrize("name", CALLS)
def test_components_escape_texts_and_attributes(name: str) -> None:
    html = str(
        getattr(environment("unseen.report").get_template("components.html.j2").module, name)(*CALLS[name])
    )
    assert "&lt;script&gt;" in html
    assert NASTY not in html
    assert "<script" not in html


def test_cells_that_are_markup_are_not_escaped_again() -> None:
    module = environment("unseen.report").get_template("components.html.j2").module
    rows = [[Markup("<a href='x'>{}</a>").format("a & b")]]
    assert "<a href='x'>a &amp; b</a>" in str(module.data_table(DataTable(["h"], rows)))  # type: ignore[attr-defined]


def test_a_name_that_no_page_gives_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        environment("unseen.report").from_string("{{ missing }}").render()


def test_templates_are_part_of_the_package() -> None:
    for package in ("unseen.report", "unseen.audit", "unseen.bench"):
        assert [path for path in files(package).joinpath("templates").iterdir() if path.name.endswith(".j2")]
