"""The page of one run, finished or not."""

from __future__ import annotations

from pathlib import Path

from unseen.fileio import write_text
from unseen.report import sections
from unseen.report.figures import FIGURES, draw_figures
from unseen.report.headline import headline, plain_headline, tiles
from unseen.report.page import place_figures, render_page
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder, finished or not, and return its path."""
    path = RunFolder(folder).report
    write_text(path, run_page(read_run(folder)))
    return path


def run_page(run: Run) -> str:
    """Render the page of one run."""
    drawn = draw_figures(run)
    figures, charts = place_figures({name: FIGURES[name] for name in drawn}, drawn)
    facts = run.facts
    return render_page(
        "run.html.j2",
        title=plain_headline(run),
        charts=charts,
        headline=headline(run),
        about=[facts.get("data"), facts.get("model"), f"seed {facts['seed']}" if "seed" in facts else ""],
        finished=run.finished,
        held_out=run.held_out,
        tiles=tiles(run),
        result=sections.result_table(run),
        oracle_note=sections.ORACLE_NOTE,
        figures=figures,
        domains=sections.domain_table(run),
        examples=sections.example_cards(run),
        disclosure=sections.disclosure(run),
        clients=sections.client_list(run),
        notes=sections.notes(run),
        faults=sections.fault_table(run),
        command=sections.train_command(run.config),
        run_id=facts.get("run_id", ""),
        version=run.start.get("version", ""),
        configuration=sections.configuration_table(run),
    )
