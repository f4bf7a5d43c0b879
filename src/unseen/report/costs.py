"""Costs of each round: time, and bytes in both directions."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from unseen.report.charts import MOST_ROUNDS, downsample, inline_data, round_ticks
from unseen.report.formatting import is_number
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

_EVALUATION = "evaluation"


def time_per_round(run: Run) -> Panels:
    """Draw seconds of training and evaluation, stacked."""
    rows = _rows(run.rounds, {"training": "seconds"}) + _rows(run.evaluations, {_EVALUATION: "seconds"})
    return {"": _stacked(rows, title="seconds")} if rows else {}


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
    return {"": _stacked(rows, title=unit)} if rows else {}


def _rows(records: list[dict[str, Any]], fields: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"round": record["round"], "kind": kind, "value": record[field]}
        for record in downsample(records, MOST_ROUNDS)
        for kind, field in fields.items()
        if is_number(record.get(field))
    ]


def _stacked(rows: list[dict[str, Any]], *, title: str) -> AnyChart:
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
