"""Parts that charts share: inline data, a round axis, downsampling, heat maps, lines and bars.

Names of domains and classes only ever occur in data values, never in field names or expressions, so
no name can break a chart. Every chart takes the width of its container.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from unseen.report.formatting import shorten_names

if TYPE_CHECKING:
    import altair as alt

    AnyChart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
    Panels: TypeAlias = dict[str, AnyChart]

T = TypeVar("T")

MOST_ROUNDS = 300
TEXT_CELL = 24


@contextmanager
def skip_schema_checks() -> Iterator[None]:
    """Skip Altair's validation of every part of a chart; whole charts are validated at the end."""
    from altair.utils import schemapi

    with schemapi.debug_mode(False):
        yield


def inline_data(rows: Sequence[Mapping[str, Any]]) -> alt.InlineData:
    """Wrap rows as data inside the chart."""
    import altair as alt

    return alt.InlineData(values=[dict(row) for row in rows])


def downsample(items: Sequence[T], most: int) -> list[T]:
    """Keep at most `most` items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def round_axis(rounds: Sequence[int]) -> alt.X:
    """Return a quantitative axis of rounds with ticks at whole numbers only."""
    import altair as alt

    first, last = min(rounds), max(rounds)
    domain = [first - 1, last + 1] if first == last else [first, last]
    axis = alt.Axis(values=round_ticks(rounds), format="d", labelFlush=False)
    return alt.X("round:Q", title="round", axis=axis, scale=alt.Scale(domain=domain, nice=False))


def round_ticks(rounds: Sequence[int]) -> list[int]:
    """Return about eight round numbers between the first round and the last."""
    first, last = min(rounds), max(rounds)
    steps = (base * 10**power for power in range(9) for base in (1, 2, 5))
    step = next(step for step in steps if (last - first) / step <= 8)
    start = -(-first // step) * step
    return list(range(start, last + 1, step)) or [first]


def line_chart(points: Sequence[tuple[int, float]], *, label: str, height: int = 180) -> AnyChart:
    """Draw one value over the rounds."""
    import altair as alt

    points = downsample(points, MOST_ROUNDS)
    rows = [{"round": number, "value": value} for number, value in points]
    dots: Any = {"size": 30, "filled": True, "style": "main"} if len(points) <= 20 else False
    chart: alt.Chart = (
        alt.Chart(inline_data(rows))
        .mark_line(style="main-line", point=dots)
        .encode(
            x=round_axis([number for number, _ in points]),
            y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
            tooltip=[alt.Tooltip("round:Q"), alt.Tooltip("value:Q", title=label, format=".4~r")],
        )
        .properties(width="container", height=height)
    )
    return chart


def heat_map(
    rows: Sequence[Mapping[str, Any]],
    *,
    across: Sequence[str],
    down: Sequence[str],
    titles: tuple[str | None, str | None],
    tooltip: Sequence[tuple[str, str, str]],
    signed: bool = False,
) -> AnyChart:
    """Draw cells with keys `across`, `down`, `value` (the colour) and `text`.

    The numbers in the cells are drawn only where the cells are wide enough for them.
    """
    import altair as alt

    right, left = shorten_names(across, 14), shorten_names(down, 22)
    slanted = len(across) > 1 and 8 * max(map(len, right.values())) > 230 / len(across)
    x_axis = alt.Axis(
        labelAngle=-45 if slanted else 0,
        labelLimit=120,
        labelOverlap=len(across) > 16,
        title=titles[0],
        orient="bottom",
    )
    y_axis = alt.Axis(labelLimit=150, labelOverlap=True, title=titles[1])
    most = max(abs(row["value"]) for row in rows) or 1.0
    scale = alt.Scale(
        domain=[-most, most] if signed else [0, most],
        range="diverging" if signed else "ramp",
        interpolate="rgb",
    )
    drawn = [
        dict(row)
        | {"x": right[row["across"]], "y": left[row["down"]], "strong": abs(row["value"]) > 0.55 * most}
        for row in rows
    ]
    base = alt.Chart(inline_data(drawn)).encode(
        x=alt.X("x:N", sort=list(right.values()), axis=x_axis, scale=alt.Scale(padding=0)),
        y=alt.Y("y:N", sort=list(left.values()), axis=y_axis, scale=alt.Scale(padding=0)),
        tooltip=[alt.Tooltip(field, title=title, format=form) for field, title, form in tooltip],
    )
    cells = base.mark_rect().encode(color=alt.Color("value:Q", legend=None, scale=scale))
    layers = [cells]
    step = 30 if len(down) <= 12 else max(4, min(24, 560 // len(down)))
    if len(across) <= 16 and step >= 18:
        room = max(TEXT_CELL, 4 + 6 * max(len(str(row["text"])) for row in rows))
        wide_enough = alt.expr(f"width / {len(across)} < {room} ? 0 : 1")
        for strong, style in ((False, "cell-low"), (True, "cell-high")):
            text = base.mark_text(style=style, opacity=wide_enough, tooltip=None)
            here = f"datum.strong === {str(strong).lower()}"
            layers.append(text.encode(text="text:N").transform_filter(here))
    return alt.layer(*layers).properties(width="container", height=max(60, step * len(down)))


def bar_chart(
    rows: Sequence[Mapping[str, Any]],
    *,
    order: Sequence[str],
    title: str,
    form: str,
    fraction: bool = False,
    room: int = 22,
) -> AnyChart:
    """Draw horizontal bars for rows with keys `name` and `value`, with the number at the end of each bar."""
    import altair as alt

    short = shorten_names(order, room)
    values = [row["value"] for row in rows]
    low, high = min(0.0, *values), 1.0 if fraction else max(0.0, *values)
    scale = alt.Scale(domain=[1.22 * low, 1.22 * high] if low < high else [0, 1], nice=False)
    whole = 1 if form.endswith("0f") else alt.Undefined
    ticks = [0, 0.25, 0.5, 0.75, 1] if fraction else alt.Undefined
    x_axis = alt.Axis(format=form, tickCount=4, tickMinStep=whole, grid=True, values=ticks)
    base = alt.Chart(inline_data([dict(row) | {"y": short[row["name"]]} for row in rows])).encode(
        x=alt.X("value:Q", title=title, axis=x_axis, scale=scale),
        y=alt.Y("y:N", sort=list(short.values()), title=None, axis=alt.Axis(labelLimit=210)),
        tooltip=[alt.Tooltip("name:N", title="name"), alt.Tooltip("value:Q", title=title, format=form)],
    )
    side = alt.expr("datum.value < 0 ? 'right' : 'left'")
    ends = base.mark_text(
        style="note", align=side, dx=alt.expr("datum.value < 0 ? -4 : 4"), baseline="middle"
    )
    solid = base.mark_bar(style="main", cornerRadiusEnd=2, height={"band": 0.72})
    return alt.layer(solid, ends.encode(text=alt.Text("value:Q", format=form))).properties(
        width="container", height=max(60, (24 if len(order) <= 20 else 18) * len(order))
    )
