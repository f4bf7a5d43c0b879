"""Regression in detail: predictions against the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unseen.report.charts import inline, thinned
from unseen.report.wording import is_number
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

MOST_POINTS = 800
MOST_PANELS = 6


def truth_against_prediction(run: Run) -> Panels:
    """For each held-out domain a scatter with the line on which all points should lie."""
    panels: Panels = {}
    for entry in run.final.get("scatter", [])[:MOST_PANELS]:
        both = zip(entry.get("truth", []), entry.get("predicted", []), strict=False)
        pairs = [(truth, guess) for truth, guess in both if is_number(truth) and is_number(guess)]
        if pairs:
            shown = thinned(pairs, MOST_POINTS)
            cut = "" if len(shown) == len(pairs) else f" ({len(shown)} of {len(pairs)} samples)"
            panels[f"‘{entry['domain']}’{cut}"] = _scatter(shown)
    return panels


def _scatter(pairs: list[tuple[float, float]]) -> AnyChart:
    import altair as alt

    numbers = [value for pair in pairs for value in pair]
    low, high = min(numbers), max(numbers)
    margin = 0.04 * (high - low) or 1.0
    scale = alt.Scale(domain=[low - margin, high + margin], nice=False, zero=False)
    ticks = alt.Axis(tickCount=5)
    diagonal = alt.Chart(inline([{"truth": end, "predicted": end} for end in scale["domain"]]))
    rows = [{"truth": truth, "predicted": guess} for truth, guess in pairs]
    dots = alt.Chart(inline(rows)).mark_circle(style="main", size=26, opacity=0.5)
    across = alt.X("truth:Q", title="truth", scale=scale, axis=ticks)
    up = alt.Y("predicted:Q", title="predicted", scale=scale, axis=ticks)
    encoded = dots.encode(
        x=across,
        y=up,
        tooltip=[alt.Tooltip("truth:Q", format=".4~r"), alt.Tooltip("predicted:Q", format=".4~r")],
    )
    line = diagonal.mark_line(style="guide").encode(x=across, y=up)
    return alt.layer(line, encoded).properties(width="container", height=320)
