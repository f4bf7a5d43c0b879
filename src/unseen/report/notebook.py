"""A run in a notebook: its scores as rows of a data frame, and its result as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unseen.report.formatting import is_number
from unseen.report.headline import headline
from unseen.report.page import environment
from unseen.report.run_page import result_table
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run


class NotebookTable(NamedTuple):
    """A table of `notebook.html.j2`: groups of rows under headings ("" for none), a note below.

    A cell is a text, or has a `text` and says whether it is `bold`.
    """

    headers: Sequence[str]
    groups: Sequence[tuple[str, Sequence[Sequence[object]]]]
    title: str = ""
    text_columns: int = 1
    note: str = ""


def notebook_html(about: object, tables: Sequence[NotebookTable], *, page: Path) -> str:
    """Render tables below a sentence, without style or script: notebooks bring the one and remove the other.

    page  the whole report, which is named if it exists
    """
    shown = str(page) if page.exists() else ""
    return environment("unseen.report").get_template("notebook.html.j2").render(
        about=about, tables=tables, page=shown
    )  # fmt: skip


def run_html(run: Run) -> str:
    """Show a run's headline and the scores of its kept round under every selection rule."""
    found = result_table(run)
    tables = []
    if found is not None:
        tables.append(NotebookTable(found.headers, [("", found.rows)], text_columns=found.text_columns))
    return notebook_html(headline(run), tables, page=RunFolder(run.folder).report)


def score_rows(run: Run) -> list[dict[str, Any]]:
    """Return one row per evaluated round, domain and split: what identifies the run, then every number."""
    about = {name: run.facts.get(name) for name in ("run_id", "data", "method", "model", "seed")}
    about["held_out"] = ", ".join(run.held_out)
    return [
        {
            **about,
            "round": record["round"],
            **{name: score.get(name) for name in ("domain", "split", "count")},
            **{name: value for name, value in (score.get("metrics") or {}).items() if is_number(value)},
        }
        for record in run.evaluations
        for score in record.get("scores") or ()
    ]
