"""What a run shows for itself: terminal tables, figures, one web page that works offline."""

from unseen.report.comparison import write_comparison
from unseen.report.figures import FIGURES, Figure, draw_figures
from unseen.report.png import write_figures
from unseen.report.run_page import write_report
from unseen.report.tables import result_table, to_markdown

__all__ = [
    "FIGURES", "Figure", "draw_figures", "result_table", "to_markdown", "write_comparison",
    "write_figures", "write_report",
]  # fmt: skip
