"""Predictions in detail: samples per domain and class, confusions, accuracy per class, regression scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unseen.report.charts import bar_chart, downsample, heat_map, inline_data
from unseen.report.formatting import HELD_OUT_MARK, format_count, is_number, shorten_names
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

MOST_CELLS = 4000
MOST_BARS = 40
MOST_LISTED = 20
MOST_CLASSES = 30
MOST_PANELS = 6
MOST_POINTS = 800


def sample_counts(run: Run) -> Panels:
    """Draw a heat map of samples per domain and class, or bars per domain if there are too many cells."""
    counts: dict[str, dict[str, int]] = run.data.get("class_counts") or {}
    classes = list(dict.fromkeys(name for row in counts.values() for name in row))
    if not classes:
        return {}
    if len(classes) <= MOST_CLASSES and len(classes) * len(counts) <= MOST_CELLS:
        return {"": _count_map(run, counts, classes)}
    totals = {_role(run, domain): sum(row.values()) for domain, row in counts.items()}
    shown = sorted(totals, key=lambda name: -totals[name])[:MOST_BARS]
    rows = [{"name": name, "value": totals[name]} for name in shown]
    label = "all classes together" + _cut(len(shown), len(totals), "largest")
    return {label: bar_chart(rows, order=shown, title="samples", form=",.0f")}


def confusion(run: Run) -> Panels:
    """Draw for each held-out domain its confusion matrix, or its most frequent confusions."""
    classes = [str(name) for name in run.data.get("classes") or []]
    panels: Panels = {}
    for entry in run.final.get("confusion", [])[:MOST_PANELS]:
        matrix: list[list[int]] = entry.get("matrix") or []
        names = classes if len(classes) == len(matrix) else [str(i) for i in range(len(matrix))]
        domain = f"‘{entry['domain']}’"
        if not any(map(any, matrix)):
            continue
        if len(names) <= MOST_CLASSES:
            panels[domain] = _matrix(matrix, names)
        else:
            panels |= _frequent(matrix, names, domain)
    return panels


def class_accuracy(run: Run) -> Panels:
    """Draw for each held-out domain the accuracy of each class, the lowest first."""
    panels: Panels = {}
    targets = [score for score in run.final.get("scores", []) if score.get("split") == "target"]
    for score in targets[:MOST_PANELS]:
        known = {name: value for name, value in (score.get("per_class") or {}).items() if is_number(value)}
        shown = sorted(known, key=lambda name: known[name])[:MOST_LISTED]
        if shown:
            rows = [{"name": name, "value": known[name]} for name in shown]
            label = f"‘{score['domain']}’" + _cut(len(shown), len(known), "lowest")
            panels[label] = bar_chart(rows, order=shown, title="accuracy", form=".0%", fraction=True)
    return panels


def _count_map(run: Run, counts: dict[str, dict[str, int]], classes: list[str]) -> Any:
    domains = downsample(list(counts), MOST_BARS)
    rows = []
    for domain in domains:
        for name in classes:
            value = counts[domain].get(name, 0)
            cell = {"across": name, "down": _role(run, domain), "value": value}
            rows.append(cell | {"text": format_count(value)})
    return heat_map(
        rows,
        across=classes,
        down=[_role(run, domain) for domain in domains],
        titles=("class", None),
        tooltip=[("down:N", "domain", ""), ("across:N", "class", ""), ("value:Q", "samples", ",")],
    )


def _matrix(matrix: list[list[int]], names: list[str]) -> Any:
    rows = []
    for truth, line in zip(names, matrix, strict=True):
        for predicted, cell in zip(names, line, strict=True):
            fraction = cell / max(1, sum(line))
            rows.append(
                {"across": predicted, "down": truth, "value": fraction, "cases": cell}
                | {"text": str(cell) if cell else ""}
            )
    tooltip = [("down:N", "true class", ""), ("across:N", "predicted", "")]
    numbers = [("cases:Q", "images", ","), ("value:Q", "fraction of the true class", ".1%")]
    return heat_map(
        rows, across=names, down=names, titles=("predicted", "true class"), tooltip=tooltip + numbers
    )


def _frequent(matrix: list[list[int]], names: list[str], domain: str) -> Panels:
    short = list(shorten_names(names, 14).values())
    pairs = [
        (cell, f"{short[i]} → {short[j]}")
        for i, line in enumerate(matrix)
        for j, cell in enumerate(line)
        if i != j and cell
    ]
    pairs.sort(key=lambda pair: -pair[0])
    shown = pairs[:MOST_LISTED]
    if not shown:
        return {}
    rows = [{"name": name, "value": cell} for cell, name in shown]
    label = f"{domain}: most frequent confusions (true → predicted)"
    return {label: bar_chart(rows, order=[name for _, name in shown], room=32, title="samples", form=",.0f")}


def _role(run: Run, domain: str) -> str:
    return domain + HELD_OUT_MARK if domain in run.held_out else domain


def _cut(shown: int, known: int, which: str) -> str:
    return "" if shown == known else f" (the {shown} {which} of {known})"


def truth_against_prediction(run: Run) -> Panels:
    """Draw for each held-out domain a scatter plot with the line of perfect predictions."""
    panels: Panels = {}
    for entry in run.final.get("scatter", [])[:MOST_PANELS]:
        both = zip(entry.get("truth", []), entry.get("predicted", []), strict=False)
        pairs = [(truth, guess) for truth, guess in both if is_number(truth) and is_number(guess)]
        if pairs:
            shown = downsample(pairs, MOST_POINTS)
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
    diagonal = alt.Chart(inline_data([{"truth": end, "predicted": end} for end in scale["domain"]]))
    rows = [{"truth": truth, "predicted": guess} for truth, guess in pairs]
    dots = alt.Chart(inline_data(rows)).mark_circle(style="main", size=26, opacity=0.5)
    across = alt.X("truth:Q", title="truth", scale=scale, axis=ticks)
    up = alt.Y("predicted:Q", title="predicted", scale=scale, axis=ticks)
    encoded = dots.encode(
        x=across,
        y=up,
        tooltip=[alt.Tooltip("truth:Q", format=".4~r"), alt.Tooltip("predicted:Q", format=".4~r")],
    )
    line = diagonal.mark_line(style="guide").encode(x=across, y=up)
    return alt.layer(line, encoded).properties(width="container", height=320)
