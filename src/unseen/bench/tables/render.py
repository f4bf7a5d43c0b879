"""Tables for the terminal, as Markdown, as LaTeX with booktabs, and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unseen.bench.tables.results_table import ResultsTable, TableCell, TableRow
from unseen.bench.tables.sheet import Line, Sheet, Text

if TYPE_CHECKING:
    from rich.console import Group

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "–": "--", "−": "$-$", "†": r"$^{\dagger}$", "<": "$<$", ">": "$>$",
    "\u00a0": "~", "\u202f": r"\,", "°": r"$^{\circ}$", "λ": r"$\lambda$",
}  # fmt: skip


def to_terminal(sheet: Sheet) -> Group:
    """Render a rich table, with published lines dimmed below a rule and the note below the table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text as Styled

    table = Table(
        box=SIMPLE_HEAD,
        header_style="bold",
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for place, header in enumerate(sheet.headers):
        table.add_column(Styled(header), justify="right" if place else "left", overflow="fold")
    for position, (heading, lines) in enumerate(sheet.groups):
        if position:
            table.add_section()
        if heading:
            table.add_row(Styled(heading, style="dim italic"))
        for line in lines:
            style = "dim" if position else ""
            table.add_row(*(Styled(cell.text, style="bold" if cell.bold else style) for cell in line))
    note = [Styled(sheet.note, style="dim italic")] if sheet.note else []
    return Group(Styled(sheet.title, style="bold"), table, *note)


def to_markdown(sheet: Sheet, *, level: int = 2) -> str:
    """Render a Markdown table with its title above and the headings of its groups below."""
    ruler = [":--", *("--:" for _ in sheet.headers[1:])]
    lines = [[Text(header) for header in sheet.headers], [Text(mark) for mark in ruler]]
    lines += [list(line) for _, group in sheet.groups for line in group]
    rows = ["| " + " | ".join(_markdown(cell) for cell in line) + " |" for line in lines]
    notes = [f"{heading[0].upper()}{heading[1:]}." for heading, _ in sheet.groups if heading]
    below = " ".join([*([sheet.note] if sheet.note else []), *notes])
    return "\n".join([f"{'#' * level} {sheet.title}", "", *rows, *(["", below] if below else [])]) + "\n"


def to_latex(sheet: Sheet, *, label: str = "") -> str:
    r"""Render a LaTeX table for \usepackage{booktabs}; groups are separated by a rule and a heading."""
    body: list[str] = []
    for heading, lines in sheet.groups:
        if heading:
            body += [
                r"\midrule",
                rf"\multicolumn{{{len(sheet.headers)}}}{{l}}{{\emph{{{escape_latex(heading)}}}}} \\",
            ]
        body += [_latex_line(line) for line in lines]
    header = " & ".join(escape_latex(name) for name in sheet.headers)
    caption = escape_latex(f"{sheet.title}. {sheet.note}".strip())
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{caption}}}",
            *([rf"\label{{{label}}}"] if label else []),
            rf"\begin{{tabular}}{{l{'r' * (len(sheet.headers) - 1)}}}",
            r"\toprule",
            rf"{header} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    ) + "\n"  # fmt: skip


def latex_file(sheets: Sequence[Sheet]) -> str:
    """Render all sheets as one file that a paper can \\input."""
    head = "% Written by unseen; needs \\usepackage{booktabs}.\n"
    slugs = [re.sub(r"[^a-z0-9]+", "-", sheet.title.lower()).strip("-") for sheet in sheets]
    return head + "\n".join(
        to_latex(sheet, label=f"tab:{slug}") for sheet, slug in zip(sheets, slugs, strict=True)
    )


def escape_latex(text: str) -> str:
    """Escape text so that LaTeX prints it literally."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _latex_line(line: Line) -> str:
    cells = (
        rf"\textbf{{{escape_latex(cell.text)}}}" if cell.bold else escape_latex(cell.text) for cell in line
    )
    return " & ".join(cells) + r" \\"


def _markdown(cell: Text) -> str:
    text = cell.text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return f"**{text}**" if cell.bold and text else text


FIELDS = (
    "published", "model", "selection", "method", "held_out", "metric",
    "mean", "standard_error", "runs", "verdict",
)  # fmt: skip


def to_csv(tables: Sequence[ResultsTable]) -> str:
    """Write all tables, one line per cell; `held_out` is "mean" for the mean over domains.

    Values are fractions, empty where unknown. Where rows name the weights of clients, a last field has them.

    Published lines appear once, with the paper's own selection rule.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    weights = any(table.names_weights for table in tables)
    writer.writerow((*FIELDS, *(["weights"] if weights else [])))

    def write(row: TableRow, table: ResultsTable, *, selection: str, published: str) -> None:
        for line in _lines(row, table, selection=selection, published=published):
            writer.writerow([*line, *([row.weights] if weights else [])])

    for table in tables:
        for row in table.rows:
            write(row, table, selection=table.rule, published="")
    shown = set()
    for table in tables:
        found = table.published
        if found is not None and (table.model, found.source) not in shown:
            shown.add((table.model, found.source))
            for row in found.rows:
                write(row, table, selection=found.selection, published=found.source)
    return text.getvalue()


def _lines(row: TableRow, table: ResultsTable, *, selection: str, published: str) -> Iterator[list[str]]:
    for column, cell in [*zip(table.columns, row.cells, strict=True), ("mean", row.mean)]:
        place = [published, table.model, selection, row.label, column, table.metric]
        yield [*place, *_numbers(cell, bool(published))]


def _numbers(cell: TableCell, published: bool) -> list[str]:
    found = cell.estimate
    if found is None:
        return ["", "", "" if published else "0", cell.verdict]
    error = "" if found.error is None else f"{found.error:.6g}"
    return [f"{found.mean:.6g}", error, "" if published else str(found.count), cell.verdict]
