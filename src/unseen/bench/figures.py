"""The figures of a bench, in the order of its page; a new one is one entry here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unseen.bench import drawings, setting_drawings
from unseen.bench.shown import Shown
from unseen.report.charts import schema_unchecked
from unseen.report.figures import Figure

if TYPE_CHECKING:
    from unseen.report.charts import Panels

BENCH_FIGURES: dict[str, Figure[Shown]] = {
    "domains": Figure(
        "Every held-out domain",
        "A dot is a method's mean over seeds, its line one standard error to either side.",
        drawings.domain_dots,
    ),
    "expected": Figure(
        "To expect on a new site",
        "The dot is the mean over held-out domains. Thick: where the mean over all such sites lies with 95 % "
        "confidence. Thin: where a single new site lies. See the assumption beside the table.",
        drawings.expectations,
    ),
    "curves": Figure(
        "Over the rounds",
        "Mean over seeds on the held-out domain after every evaluated round; the band is one standard error "
        "to either side. Click a name to single it out. Nothing here was used to choose a round.",
        drawings.curves,
        width="full",
    ),
    "sensitivity": Figure(
        "Sensitivity to a setting",
        "Mean over the held-out domains with its standard error over seeds. The dashed line is the baseline.",
        setting_drawings.sensitivity,
    ),
    "sources": Figure(
        "With more source domains",
        "Mean over the held-out domains against the number of domains that took part in training.",
        setting_drawings.number_of_sources,
    ),
    "matrix": Figure(
        "Method against method",
        "Blue: the method of the row is ahead of the one below; brown: behind. The text is the p-value of "
        "the paired t-test; a star marks what stays significant after Holm's correction for all pairs.",
        drawings.matrix,
    ),
}


def draw_bench(shown: Shown) -> dict[str, Panels]:
    """All figures that have something to show, by their names in `BENCH_FIGURES`."""
    with schema_unchecked():
        drawn = {name: figure.draw(shown) for name, figure in BENCH_FIGURES.items()}
    return {name: panels for name, panels in drawn.items() if panels}
