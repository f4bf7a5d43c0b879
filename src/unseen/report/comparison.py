"""The comparison page of several runs: one table, held-out scores over the rounds, links to each report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from unseen.errors import UsageError
from unseen.fileio import write_text
from unseen.report.charts import MOST_ROUNDS, downsample
from unseen.report.curves import MOST_LINES, curve_chart
from unseen.report.figures import Figure
from unseen.report.formatting import format_value, is_number, join_names, method_name
from unseen.report.headline import target_value
from unseen.report.page import DataTable, place_figures, render_page
from unseen.report.run_page import ORACLE_NOTE
from unseen.report.tables import TEXT_COLUMNS, result_rows, weights_sentence
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run, read_run
from unseen.tasks import goodness, metric_label

if TYPE_CHECKING:
    from markupsafe import Markup

    from unseen.report.charts import Panels

ONE_SEED_NOTE = "Each row is one run: with other seeds the numbers, and the order of close ones, can change."


def write_comparison(folders: list[Path], out: Path) -> Path:
    """Write one page that compares several runs; return its path."""
    if not folders:
        raise UsageError("nothing to compare: give at least one run folder")
    write_text(out, comparison_page([read_run(folder) for folder in folders], base=out.parent))
    return out


def comparison_page(runs: Sequence[Run], *, base: Path) -> str:
    """Render the page; links are relative to `base`."""
    names, facts = run_labels(runs), [run.facts for run in runs]
    figures: dict[str, Figure[Run]] = {}
    drawn: dict[str, Panels] = {}
    for metric in dict.fromkeys(run.metric for run in runs):
        panels = _curves([(name, run) for name, run in zip(names, runs, strict=True) if run.metric == metric])
        if panels:
            drawn[f"comparison-{metric}"] = panels
            figures[f"comparison-{metric}"] = Figure(
                f"Held-out {metric_label(metric)} over the rounds",
                "Mean over the held-out domains of each run. Click a name to single it out.",
                lambda _: {},
                width="full",
            )
    places, charts = place_figures(figures, drawn)
    return render_page(
        "comparison.html.j2",
        title=f"Unseen: {len(runs)} runs compared",
        charts=charts,
        headline=_sentence(runs),
        about=[*dict.fromkeys(str(run.facts.get("data", "")) for run in runs), f"{len(runs)} runs"],
        results=_table(runs, base),
        results_note=" ".join(filter(None, [ONE_SEED_NOTE, weights_sentence(facts), ORACLE_NOTE])),
        figures=places,
    )


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Name each run by its method and whatever else distinguishes the runs."""
    parts = [
        [
            method_name(run.facts.get("method", "run")),
            f"on {join_names(run.held_out, limit=2)}",
            str(run.facts.get("model", "")),
            str(run.facts.get("data", "")),
            f"seed {run.facts.get('seed', '')}",
        ]
        for run in runs
    ]
    telling = [i for i in range(len(parts[0])) if i == 0 or len({part[i] for part in parts}) > 1]
    labels = [", ".join(part[i] for i in telling) for part in parts]
    return [
        label if labels.count(label) == 1 else f"{label}, {run.folder.name}"
        for label, run in zip(labels, runs, strict=True)
    ]


def _table(runs: Sequence[Run], base: Path) -> DataTable:
    from markupsafe import Markup, escape

    headers, rows = result_rows([run.facts for run in runs])
    linked: list[list[object]] = []
    for run, row in zip(runs, rows, strict=True):
        report = RunFolder(run.folder).report
        target = quote(Path(os.path.relpath(report, base)).as_posix())
        method = Markup('<a href="{}">{}</a>').format(target, row[0]) if report.is_file() else escape(row[0])
        state = "" if run.finished else Markup('<span class="hint"> (unfinished)</span>')
        linked.append([method + state, *row[1:]])
    return DataTable(headers, linked, text_columns=TEXT_COLUMNS)


def _curves(named: list[tuple[str, Run]]) -> Panels:
    many = len(named) > MOST_LINES
    rows: list[dict[str, Any]] = []
    for name, run in named:
        series = method_name(run.facts.get("method", "run")) if many else name
        rows += [row | {"series": series, "run": name, "role": "held out"} for row in _target_rows(run)]
    if not rows:
        return {}
    return {"": curve_chart(rows, metric=named[0][1].metric, selected=None, detail="run")}


def _target_rows(run: Run) -> list[dict[str, Any]]:
    rows = []
    for record in downsample(run.evaluations, MOST_ROUNDS):
        scores = [score for score in record.get("scores", []) if score.get("split") == "target"]
        values = [(score.get("metrics") or {}).get(run.metric) for score in scores]
        known = [value for value in values if is_number(value)]
        if known:
            rows.append({"round": record["round"], "value": sum(known) / len(known)})
    return rows


def _sentence(runs: Sequence[Run]) -> Markup:
    from markupsafe import Markup, escape

    scored = [(value, run) for run in runs if is_number(value := target_value(run))]
    alike = len({(run.metric, str(run.facts.get("data")), tuple(run.held_out)) for _, run in scored}) == 1
    methods = [run.facts.get("method") for _, run in scored]
    if not alike or len(set(methods)) != len(runs) or not scored[0][1].held_out:
        return escape(f"{len(runs)} runs side by side")
    metric = scored[0][1].metric
    ranked = sorted(scored, key=lambda pair: goodness(metric, pair[0]), reverse=True)
    scores = [
        Markup("{} <strong>{}</strong>").format(
            method_name(run.facts.get("method")), format_value(value, metric)
        )
        for value, run in ranked[:4]
    ]
    unit = "" if metric == "accuracy" else f" ({metric_label(metric)})"
    held = join_names(ranked[0][1].held_out)
    return escape(f"On {held}, which no run was trained on{unit}: ") + Markup(", ").join(scores)
