"""Calibration on the page: reliability diagrams, ECE, coverage and size of prediction sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from unseen.report.charts import inline_data
from unseen.report.formatting import NOTHING, format_count, format_value, is_number
from unseen.report.page import DataTable
from unseen.runs.reader import Run
from unseen.tasks.detail_metrics import DETAIL_METRICS

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

MOST_PANELS = 6
SPLITS = {"target": "held out", "validation": "validation", "test": "test"}


def reliability_diagram(run: Run) -> Panels:
    """Draw accuracy against confidence for every held-out domain and for the sources' test samples."""
    scores = [score for score in run.final.get("scores", []) if "calibration" in score]
    panels: Panels = {}
    for score in [each for each in scores if each["split"] == "target"][: MOST_PANELS - 1]:
        panels[f"‘{score['domain']}’ (held out)"] = _diagram(
            {when: score["calibration"][when]["bins"] for when in ("before", "after")}
        )
    inside = [score["calibration"] for score in scores if score["split"] == "test"]
    if inside:
        panels["sources, test samples"] = _diagram(
            {when: _add_bins([each[when]["bins"] for each in inside]) for when in ("before", "after")}
        )
    return panels


def _add_bins(found: list[list[list[float]]]) -> list[list[float]]:
    return [[sum(values) for values in zip(*bins, strict=True)] for bins in zip(*found, strict=True)]


def _diagram(bins: Mapping[str, list[list[float]]]) -> AnyChart:
    import altair as alt

    names = {"before": "as the network says", "after": "scaled"}
    rows = [
        {
            "line": names[when],
            "confidence": confidence / count,
            "accuracy": right / count,
            "samples": count,
        }
        for when, each in bins.items()
        for count, confidence, right in each
        if count
    ]
    scale = alt.Scale(domain=[0, 1])
    across = alt.X("confidence:Q", title="confidence", scale=scale, axis=alt.Axis(format="~%", tickCount=5))
    up = alt.Y("accuracy:Q", title="accuracy", scale=scale, axis=alt.Axis(format="~%", tickCount=5))
    guide = alt.Chart(inline_data([{"confidence": end, "accuracy": end} for end in (0, 1)]))
    base = alt.Chart(inline_data(rows)).encode(
        x=across,
        y=up,
        color=alt.Color(
            "line:N",
            sort=list(names.values()),
            scale=alt.Scale(domain=list(names.values())),
            legend=alt.Legend(title=None, orient="top", direction="horizontal"),
        ),
        tooltip=[
            alt.Tooltip("line:N", title="probabilities"),
            alt.Tooltip("confidence:Q", format=".1%"),
            alt.Tooltip("accuracy:Q", format=".1%"),
            alt.Tooltip("samples:Q", format=","),
        ],
    )
    layers = (
        guide.mark_line(style="guide").encode(x=across, y=up),
        base.mark_line(strokeWidth=2),
        base.mark_point(filled=True, size=40, opacity=1),
    )
    return alt.layer(*layers).properties(width="container", height=260)


def calibration_table(run: Run) -> DataTable | None:
    """List ECE, Brier score and NLL of every domain, before and after scaling, the held-out ones first."""
    rows = []
    for score in _scores(run, "calibration"):
        before, after = score["calibration"]["before"], score["calibration"]["after"]
        rows.append(
            [score["domain"], SPLITS.get(score["split"], score["split"])]
            + [format_value(each[name], name) for name in ("ece", "brier", "nll") for each in (before, after)]
        )
    headers = ["domain", "data"] + [
        f"{name}, {when}" for name in ("ECE", "Brier", "NLL") for when in ("before", "after")
    ]
    return DataTable(headers, _percent(rows, run), text_columns=2, tall=len(rows) > 20) if rows else None


def _percent(rows: list[list[str]], run: Run) -> list[list[str]]:
    """Show the ECE, a fraction, in percent."""
    for row, score in zip(rows, _scores(run, "calibration"), strict=True):
        for place, when in ((2, "before"), (3, "after")):
            value = score["calibration"][when]["ece"]
            row[place] = f"{100 * value:.1f}\u00a0%" if is_number(value) else NOTHING
    return rows


def coverage_table(run: Run) -> DataTable | None:
    """List, for every domain, what the default sets cover and how large they are, next to the promise."""
    conformal = (run.final.get("calibration") or {}).get("conformal") or {}
    default = conformal.get("default") or {}
    promise = f"{default.get('promise', 0):g}"
    rows, rules = [], []
    for score in _scores(run, "conformal"):
        found = (score["conformal"].get(default.get("score")) or {}).get(promise) or {}
        rules = list(found)
        rows.append(
            [score["domain"], SPLITS.get(score["split"], score["split"]), f"{100 * float(promise):g}\u00a0%"]
            + [_describe_coverage(found[rule]) for rule in rules]
        )
    headers = ["domain", "data", "promised", *(f"{rule}: coverage (size)" for rule in rules)]
    return DataTable(headers, rows, text_columns=2, tall=len(rows) > 20) if rows and rules else None


def _describe_coverage(entry: Mapping[str, Any]) -> str:
    coverage, size = entry.get("coverage"), entry.get("size")
    shown = f"{100 * coverage:.1f}\u00a0%" if is_number(coverage) else NOTHING
    return f"{shown} ({size:.3g})" if is_number(size) else f"{shown} (all)"


def detail_table(run: Run) -> DataTable | None:
    """List the detailed metrics of every domain, and below them the worst domain of each."""
    scores = _scores(run, "details")
    names = list(dict.fromkeys(name for score in scores for name in score["details"]))
    if not names:
        return None
    rows = [
        [score["domain"], SPLITS.get(score["split"], score["split"]), format_count(score.get("count"))]
        + [format_detail(score["details"].get(name), name) for name in names]
        for score in scores
    ]
    details = (run.result or {}).get("details") or {}
    for key, title in (("worst_domain", "worst domain"), ("worst_group", "worst group")):
        worst = details.get(key) or {}
        if worst:
            cells = [worst.get(name) or {} for name in names]
            rows.append(
                [title, "", ""]
                + [
                    f"{format_detail(c.get('value'), n)} ({c.get('where')})"
                    for c, n in zip(cells, names, strict=True)
                ]
            )
    headers = ["domain", "data", "samples"]
    headers += [DETAIL_METRICS[name].label if name in DETAIL_METRICS else name for name in names]
    return DataTable(headers, rows, text_columns=2, tall=len(rows) > 20)


def format_detail(value: object, name: str) -> str:
    """Format a detailed metric: percent of fractions, else four significant digits."""
    if is_number(value) and name in DETAIL_METRICS and DETAIL_METRICS[name].is_fraction:
        return f"{100 * value:.1f}\u00a0%"
    return format_value(value)


def calibration_note(run: Run) -> str:
    """Say on what the scaling was fitted, and what the rules of the sets promise."""
    calibration = run.final.get("calibration") or {}
    if not calibration:
        return ""
    samples = sum((calibration.get("sources") or {}).values())
    temperature = calibration.get("temperature")
    scaled = calibration.get("scaling", {}).get("kind")
    how = f"temperature {temperature:.3g}" if scaled == "temperature" else f"{scaled} scaling"
    fitted = f"Fitted on {format_count(samples)} validation samples of the sources"
    start = f"{fitted} ({how}). " if scaled in ("temperature", "vector") else f"{fitted}. "
    return start + (
        "A set holds the true answer in at least the promised fraction of samples like the sources'. On an "
        "unseen domain nothing is guaranteed: ‘pooled’ is the usual quantile of all sources together, "
        "‘worst-source’ the largest of one source, ‘widened’ what every source needed when the others "
        "calibrated for it. The rows of held-out domains say how far each carried."
    )


def _scores(run: Run, key: str) -> list[dict[str, Any]]:
    found = [score for score in run.final.get("scores", []) if score.get(key)]
    return sorted(found, key=lambda score: score.get("split") != "target")
