"""Scores over the rounds: source domains thin, held-out domains thick, the kept round marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unseen.report.charts import MOST_ROUNDS, downsample, inline_data, line_chart, round_axis, round_ticks
from unseen.report.formatting import HELD_OUT_MARK, is_number, shorten_names
from unseen.runs.reader import Run
from unseen.runs.records import Record
from unseen.tasks import curve_metrics, is_fraction, metric_label, primary_metric

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

MOST_LINES = 9
HELD_OUT, SOURCE = "held out", "source"


def score_curves(run: Run) -> Panels:
    """Draw one panel per headline metric, with a line per domain."""
    metrics = curve_metrics(run.task)
    panels: Panels = {}
    for metric in metrics:
        rows = score_rows(run, metric)
        if rows:
            panels[metric_label(metric) if len(metrics) > 1 else ""] = curve_chart(
                rows, metric=metric, selected=run.selected_round
            )
    return panels


def client_score_curves(run: Run) -> Panels:
    """Draw the primary metric of each client's own model, before it is merged, one panel per client."""
    having = [record for record in run.rounds if record.get("client_scores")]
    clients = dict.fromkeys(name for record in having for name in record["client_scores"])
    metric = primary_metric(run.task)
    panels: Panels = {}
    for client in list(clients)[:MOST_LINES]:
        records = [
            {"round": record["round"], "scores": record["client_scores"][client]}
            for record in having
            if client in record["client_scores"]
        ]
        panels[client] = curve_chart(rows_of_scores(records, metric), metric=metric, selected=None)
    return panels


def training_loss(run: Run) -> Panels:
    """Draw the clients' mean training loss."""
    points = [(record["round"], record["loss"]) for record in run.rounds if is_number(record.get("loss"))]
    return {"": line_chart(points, label="training loss")} if points else {}


def score_rows(run: Run, metric: str) -> list[dict[str, Any]]:
    """Return rows (round, series, role, value, low, high); many domains become one mean with its range."""
    return rows_of_scores(_kept(run), metric)


def rows_of_scores(records: Sequence[Record], metric: str) -> list[dict[str, Any]]:
    """Return the rows of `score_rows` for records with a round and scores."""
    values: dict[str, dict[str, dict[int, float]]] = {HELD_OUT: {}, SOURCE: {}}
    for record in records:
        for score in record.get("scores", []):
            value = (score.get("metrics") or {}).get(metric)
            role = {"target": HELD_OUT, "validation": SOURCE}.get(score.get("split"))
            if role and is_number(value):
                values[role].setdefault(str(score["domain"]), {})[record["round"]] = value
    rows = []
    for role, domains in values.items():
        most = 4 if role == HELD_OUT else MOST_LINES - min(4, len(values[HELD_OUT]))
        rows += _line_per_domain(domains, role) if len(domains) <= most else _mean_and_range(domains, role)
    return rows


def curve_chart(
    rows: list[dict[str, Any]],
    *,
    metric: str,
    selected: int | None,
    detail: str = "series",
    series: Sequence[str] = (),
) -> AnyChart:
    """Draw lines with an interactive legend, a tooltip at the nearest point and the kept round marked.

    Rows that share `detail` form a line; rows that share `series` share a colour and a legend entry. Given
    `series`, several charts use the same colours also where one lacks a line.
    """
    import altair as alt

    rounds = sorted({row["round"] for row in rows})
    short = shorten_names([*series, *(row["series"] for row in rows)], 38)
    order = list(short.values())
    form = ".1%" if is_fraction(metric) else ".4~r"
    chosen = alt.selection_point(name="chosen", fields=["line"], bind="legend")
    near = alt.selection_point(
        name="near", fields=["round"], nearest=True, on="pointermove", clear="pointerout", empty=False
    )
    y_axis = alt.Axis(format="~%" if is_fraction(metric) else alt.Undefined, tickCount=6)
    legend = alt.Legend(
        title=None, orient="top", direction="horizontal", labelLimit=270,
        symbolType="stroke", symbolOpacity=1, columns=legend_columns(order),
    )  # fmt: skip
    base = alt.Chart(inline_data([row | {"line": short[row["series"]]} for row in rows])).encode(
        x=round_axis(rounds),
        y=alt.Y("value:Q", title=metric_label(metric), axis=y_axis, scale=alt.Scale(zero=False, nice=True)),
        color=alt.Color("line:N", sort=order, scale=alt.Scale(domain=order), legend=legend),
        opacity=alt.when(chosen).then(alt.value(1)).otherwise(alt.value(0.12)),
        detail=f"{detail}:N",
    )
    width = alt.when(alt.datum.role == HELD_OUT).then(alt.value(3.4)).otherwise(alt.value(1.5))
    coloured: list[Any] = [base.mark_line().encode(size=width)]
    if any("low" in row for row in rows):
        shade = alt.when(chosen).then(alt.value(0.16)).otherwise(alt.value(0.03))
        band = base.transform_filter("isValid(datum.low)").mark_area(line=False)
        coloured.insert(0, band.encode(y="low:Q", y2="high:Q", opacity=shade))
    # Vega-Lite takes the shared legend from the first coloured layer: only there can it be clicked.
    coloured[0] = coloured[0].add_params(chosen).properties(name="lines")
    visible = alt.value(1) if len(rounds) <= 20 else alt.value(0)
    dots = base.mark_point(filled=True, size=36, tooltip=True).encode(
        opacity=alt.when(near & chosen).then(alt.value(1)).when(chosen).then(visible).otherwise(alt.value(0)),
        tooltip=[
            alt.Tooltip(f"{detail}:N", title="line"),
            alt.Tooltip("round:Q"),
            alt.Tooltip("value:Q", title=metric_label(metric), format=form),
        ],
    )
    points = dots.add_params(near).properties(name="points")
    return alt.layer(*_selected_mark(selected, rounds), *coloured, points).properties(
        width="container", height=320
    )


def legend_columns(names: Sequence[str]) -> Any:
    """Return as many legend columns as the container has room for."""
    import altair as alt

    entry = 40 + 7 * min(36, max(map(len, names), default=1))
    return alt.expr(f"max(1, floor(((containerSize()[0] || 640) - 50) / {entry}))")


def _selected_mark(selected: int | None, rounds: list[int]) -> list[Any]:
    import altair as alt

    if selected is None or not rounds[0] <= selected <= rounds[-1]:
        return []
    late = selected - rounds[0] > (rounds[-1] - rounds[0]) / 2
    rows = [{"round": selected, "text": f"kept: round {selected}"}]
    at = alt.Chart(inline_data(rows)).encode(x=round_axis(rounds))
    label = at.mark_text(
        style="note", align="right" if late else "left", dx=-6 if late else 6, baseline="bottom", dy=-4
    )
    return [
        at.mark_rule(style="guide"),
        label.encode(text="text:N", y=alt.value(alt.expr("height"))),
    ]


def _kept(run: Run) -> list[dict[str, Any]]:
    records = run.evaluations
    kept = downsample(records, MOST_ROUNDS)
    missing = [r for r in records if r["round"] == run.selected_round and r not in kept]
    return sorted(kept + missing, key=lambda record: int(record["round"]))


def _line_per_domain(domains: dict[str, dict[int, float]], role: str) -> list[dict[str, Any]]:
    suffix = HELD_OUT_MARK if role == HELD_OUT else ""
    return [
        {"round": number, "series": name + suffix, "role": role, "value": value}
        for name, series in domains.items()
        for number, value in series.items()
    ]


def _mean_and_range(domains: dict[str, dict[int, float]], role: str) -> list[dict[str, Any]]:
    label = f"{len(domains)} {role} domains: mean and range"
    rows = []
    for number in sorted({number for series in domains.values() for number in series}):
        here = [series[number] for series in domains.values() if number in series]
        rows.append(
            {"round": number, "series": label, "role": role, "value": sum(here) / len(here)}
            | {"low": min(here), "high": max(here)}
        )
    return rows


_EVALUATION = "evaluation"


def time_per_round(run: Run) -> Panels:
    """Draw seconds of training and evaluation, stacked."""
    rows = _rows(run.rounds, {"training": "seconds"}) + _rows(run.evaluations, {_EVALUATION: "seconds"})
    return {"": _stack(rows, title="seconds")} if rows else {}


def bytes_per_round(run: Run) -> Panels:
    """Draw bytes from and to the clients, stacked."""
    rows = _rows(run.rounds, {"from clients": "bytes_up", "to clients": "bytes_down"})
    totals = Counter[int]()
    for row in rows:
        totals[row["round"]] += row["value"]
    most = max(totals.values(), default=0)
    scale, unit = next(
        (s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "bytes")) if most >= s or s == 1
    )
    rows = [row | {"value": row["value"] / scale} for row in rows]
    return {"": _stack(rows, title=unit)} if rows else {}


def _rows(records: list[dict[str, Any]], fields: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"round": record["round"], "kind": kind, "value": record[field]}
        for record in downsample(records, MOST_ROUNDS)
        for kind, field in fields.items()
        if is_number(record.get(field))
    ]


def _stack(rows: list[dict[str, Any]], *, title: str) -> AnyChart:
    import altair as alt

    rounds = sorted({row["round"] for row in rows})
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    axis = alt.Axis(values=round_ticks(rounds), labelAngle=0, title="round")
    chart: alt.Chart = (
        alt.Chart(inline_data(rows))
        .mark_bar(binSpacing=0)
        .encode(
            x=alt.X("round:O", axis=axis, scale=alt.Scale(paddingInner=0.15 if len(rounds) <= 60 else 0)),
            y=alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=5), stack="zero"),
            color=alt.Color(
                "kind:N",
                sort=kinds,
                scale=alt.Scale(domain=["", *kinds]),
                legend=alt.Legend(title=None, orient="top", symbolType="square", values=kinds),
            ),
            order=alt.Order("kind:N", sort="descending"),
            tooltip=[
                alt.Tooltip("round:O", title="round"),
                alt.Tooltip("kind:N", title="part"),
                alt.Tooltip("value:Q", title=title, format=".3~r"),
            ],
        )
        .properties(width="container", height=180)
    )
    return chart
