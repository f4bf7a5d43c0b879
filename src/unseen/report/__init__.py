"""Reports of runs: terminal tables, figures, and web pages that work offline."""

from unseen.report.comparison import write_comparison
from unseen.report.figures import FIGURES, Figure, draw_figures, register_figure
from unseen.report.png import write_figures
from unseen.report.run_page import write_report
from unseen.report.tables import result_table, to_markdown

__all__ = [
    "FIGURES", "Figure", "draw_figures", "register_figure", "result_table", "to_markdown", "write_comparison",
    "write_figures", "write_report",
]  # fmt: skip
