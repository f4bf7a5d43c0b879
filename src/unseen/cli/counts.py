"""Samples per domain and class as a table for the terminal, with small bars; or as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

Counts = Mapping[str, Mapping[str, int]]

BAR = 12
MISSING = "none"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
MOST_CLASSES = 24
_MOST_NAMED = 3


def counts_table(counts: Counts, console: Console) -> Table:
    """One row a domain and one column a class where that fits the console, else the extremes of each row."""
    classes = list(next(iter(counts.values()), {}))
    boundless = console.options.update(width=10_000)
    for bars in (True, False):
        table = _by_class(counts, classes, bars=bars)
        if (
            len(classes) <= MOST_CLASSES
            and console.measure(table, options=boundless).maximum <= console.width
        ):
            return table
    return _by_extremes(counts, classes)


def write_counts_picture(counts: Counts, path: Path) -> None:
    """Write the report's figure of the counts as PNG."""
    from unseen.fileio import write_atomically
    from unseen.report.classes import sample_counts
    from unseen.report.pictures import to_png
    from unseen.runs.reader import Run

    start = {"event": "start", "data": {"class_counts": counts}}
    (chart,) = sample_counts(Run(folder=Path(), config={}, records=[start], result=None)).values()
    picture = to_png(chart)
    write_atomically(path, lambda target: target.write_bytes(picture))


def _by_class(counts: Counts, classes: list[str], *, bars: bool) -> Table:
    several = len(classes) > 1
    table = _table(*(classes if several else ()), "samples", *([""] if bars else []))
    most = max((number for row in counts.values() for number in row.values()), default=0)
    largest = max(sum(row.values()) for row in counts.values())
    for domain, row in counts.items():
        total = sum(row.values())
        cells = [_cell(row[label], most) for label in classes if several]
        table.add_row(Text(domain), *cells, str(total), *([_bar(total, largest)] if bars else []))
    if several:
        sums = [sum(row[label] for row in counts.values()) for label in classes]
        table.add_section()
        table.add_row("all", *map(str, sums), str(sum(sums)))
    return table


def _by_extremes(counts: Counts, classes: list[str]) -> Table:
    table = _table("samples", "", "smallest class", "largest class", "classes it lacks")
    largest = max(sum(row.values()) for row in counts.values())
    for domain, row in counts.items():
        total = sum(row.values())
        present = [label for label in classes if row[label]]
        least, most = min(present, key=row.__getitem__), max(present, key=row.__getitem__)
        table.add_row(
            Text(domain),
            str(total),
            _bar(total, largest),
            Text(f"{row[least]} ({least})"),
            Text(f"{row[most]} ({most})"),
            _lacking([label for label in classes if not row[label]], len(classes)),
        )
    table.caption = f"{len(classes)} classes"
    return table


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("domain", overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right" if name else "left", overflow="fold", no_wrap=not name)
    return table


def _cell(number: int, most: int) -> Text:
    """The count, and its height against the largest of all cells."""
    if not number:
        return Text(MISSING, style="bold red")
    return Text(f"{_LEVELS[round((len(_LEVELS) - 1) * number / most)]} {number}")


def _bar(number: int, most: int) -> str:
    whole, eighths = divmod(round(8 * BAR * number / max(most, 1)), 8)
    return "█" * whole + _EIGHTHS[eighths].strip()


def _lacking(labels: list[str], classes: int) -> Text:
    if not labels:
        return Text(MISSING)
    named = ", ".join(labels[:_MOST_NAMED]) + (", ..." if len(labels) > _MOST_NAMED else "")
    return Text(f"{len(labels)} of {classes}: {named}", style="bold red")
