"""One self-contained page a run: opens from a disk, asks the network for nothing, in light and in dark.

A content security policy written into the page allows only our own two scripts, by their hashes, so
that no name in the data could ever run as code, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from unseen.fileio import write_text
from unseen.report import sections
from unseen.report.disclosure_section import departures_section
from unseen.report.examples import examples_section
from unseen.report.figures import FIGURES, Figure, draw_figures
from unseen.report.headline import headline, plain_headline, tiles
from unseen.report.markup import Markup, esc, join, section, tag
from unseen.report.png import vega_lite, vega_lite_version
from unseen.report.theme import vega_config
from unseen.report.vega_bundle import vega_script
from unseen.runs.reader import Run, read_run

if TYPE_CHECKING:
    from unseen.report.charts import Panels


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, whole or unfinished, and return its path."""
    path = folder / "report.html"
    write_text(path, run_page(read_run(folder)))
    return path


def run_page(run: Run) -> str:
    """The page of one run."""
    figures: list[Markup] = []
    charts: dict[str, Any] = {}
    for name, panels in draw_figures(run).items():
        drawn, specs = figure_markup(name, FIGURES[name], panels)
        figures.append(drawn)
        charts |= specs
    facts = run.facts
    about = [facts.get("data"), facts.get("model"), f"seed {facts['seed']}" if "seed" in facts else ""]
    body = join(
        [
            page_header("Run report", headline(run), about),
            sections.unfinished_notice(run),
            tiles(run),
            sections.result_section(run),
            section("Figures", tag("div", *figures, class_="figures") if figures else ""),
            sections.domains_section(run),
            examples_section(run),
            departures_section(run),
            sections.clients_section(run),
            sections.notes_section(run),
            sections.faults_section(run),
            sections.reproduce_section(run),
        ]
    )
    return assemble(title=plain_headline(run), body=body, charts=charts)


def page_header(kind: str, sentence: Markup, about: list[Any]) -> Markup:
    """What the page is, its one sentence, and what it is about."""
    line = " · ".join(str(part) for part in about if part)
    return tag("header", tag("p", f"Unseen · {kind}", class_="kind"), tag("h1", sentence), tag("p", line))


def figure_markup(name: str, figure: Figure[Any], panels: Panels) -> tuple[Markup, dict[str, Any]]:
    """A figure's place on the page and the charts that the script draws there."""
    boxes, specs = [], {}
    for position, (label, chart) in enumerate(panels.items(), start=1):
        key = f"chart-{name}-{position}"
        specs[key] = vega_lite(chart) | {"description": f"{figure.title}: {label}" if label else figure.title}
        heading = tag("h4", label) if label else ""
        boxes.append(tag("div", heading, tag("div", class_="chart", id_=key), class_="panel"))
    width = figure.width if len(panels) == 1 else "full"
    head = tag("figcaption", tag("h3", figure.title), tag("p", figure.caption))
    return tag("figure", head, tag("div", *boxes, class_="panels"), class_=f"card {width}"), specs


def assemble(*, title: str, body: Markup, charts: dict[str, Any]) -> str:
    """Put body, charts, style and scripts into the skeleton."""
    drawn = {"charts": charts, "themes": {"light": vega_config("light"), "dark": vega_config("dark")}}
    data = json.dumps(drawn, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    library, script = (vega_script(vega_lite_version()), _asset("report.js")) if charts else ("", "")
    allowed = " ".join(f"'sha256-{_digest(code)}'" for code in (library, script))
    return Template(_asset("page.html")).substitute(
        title=esc(title), scripts=allowed, style=_asset("report.css"), body=body, data=data,
        library=library, script=script,
    )  # fmt: skip


def _digest(code: str) -> str:
    return base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    return files("unseen.report").joinpath("assets", name).read_text(encoding="utf-8")
