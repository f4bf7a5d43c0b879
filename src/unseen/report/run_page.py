"""The page of one run, finished or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.fileio import write_text
from unseen.report import sections
from unseen.report.disclosure_section import departures_section
from unseen.report.examples import examples_section
from unseen.report.figures import FIGURES, draw_figures
from unseen.report.headline import headline, plain_headline, tiles
from unseen.report.markup import Markup, join, section, tag
from unseen.report.page import assemble, figure_markup, page_header
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run

if TYPE_CHECKING:
    pass


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, whole or unfinished, and return its path."""
    path = RunFolder(folder).report
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
