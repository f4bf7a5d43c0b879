"""A table as text: cells that the terminal, Markdown, LaTeX and the page share, and formats of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from unseen.bench.statistics import Estimate
from unseen.report.formatting import NOTHING
from unseen.tasks import is_fraction, metric_label


@dataclass(frozen=True)
class Text:
    """The text of a cell, and whether it is bold."""

    text: str
    bold: bool = False


Line = tuple[Text, ...]


@dataclass(frozen=True)
class Sheet:
    """Headers and groups of lines, each with a heading ("" for none); columns but the first are numbers."""

    title: str
    headers: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Line, ...]], ...]
    note: str = ""


def number_text(value: float | None, metric: str, decimals: int | None = None) -> str:
    """Format a number whose unit is in the title: percent with one decimal, else three decimals."""
    if value is None:
        return NOTHING
    if is_fraction(metric):
        return f"{100 * value:.{1 if decimals is None else decimals}f}"
    return f"{value:.{3 if decimals is None else decimals}f}"


def estimate_text(
    estimate: Estimate | None, metric: str, *, planned: int = 0, decimals: int | None = None
) -> str:
    """Format mean ± standard error, and the number of runs in brackets where some are missing."""
    if estimate is None:
        return NOTHING
    error = f" ± {number_text(estimate.error, metric, decimals)}" if estimate.error is not None else ""
    runs = f" ({estimate.count})" if estimate.count < planned else ""
    return number_text(estimate.mean, metric, decimals) + error + runs


def unit_text(metric: str) -> str:
    """Format the metric and its unit, for titles."""
    return f"{metric_label(metric)} in %" if is_fraction(metric) else metric_label(metric)
