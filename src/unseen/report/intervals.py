"""Charts of means with intervals: one line per name, or along the values of a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unseen.report.charts import inline_data
from unseen.report.curves import legend_columns
from unseen.report.formatting import shorten_names
from unseen.tasks import is_fraction, metric_label

if TYPE_CHECKING:
    import altair as alt

    from unseen.report.charts import AnyChart

Rows = Sequence[Mapping[str, Any]]


def dot_chart(rows: Rows, *, metric: str, names: Sequence[str], series: Sequence[str]) -> AnyChart:
    """Draw one line per name, with a dot and an interval per series.

    Rows have `name`, `series`, `value`, and `low` and `high` where there is an interval.
    """
    import altair as alt

    short, lines = shorten_names(names, 26), shorten_names(series, 38)
    base = alt.Chart(
        inline_data([dict(row) | {"y": short[row["name"]], "line": lines[row["series"]]} for row in rows])
    ).encode(
        y=alt.Y("y:N", sort=list(short.values()), title=None, axis=alt.Axis(labelLimit=170)),
        yOffset=alt.YOffset("line:N", sort=list(lines.values())),
        x=alt.X(
            "value:Q", title=metric_label(metric), scale=alt.Scale(zero=False, nice=True), axis=_axis(metric)
        ),
        color=_colour(list(lines.values())),
        tooltip=_tooltip(metric, [("name:N", "name"), ("series:N", "line")], rows),
    )
    dots = base.mark_point(filled=True, size=54, opacity=1)
    step = max(26, 11 * len(lines) + 8)
    return alt.layer(*_whiskers(base, rows, "x"), dots).properties(
        width="container", height=step * len(short)
    )


def nested_interval_chart(rows: Rows, *, metric: str, names: Sequence[str]) -> AnyChart:
    """Draw a line per name: a dot, a thick interval (low to high) and a thin one (wide_low to wide_high)."""
    import altair as alt

    short = shorten_names(names, 26)
    base = alt.Chart(inline_data([dict(row) | {"y": short[row["name"]]} for row in rows])).encode(
        y=alt.Y("y:N", sort=list(short.values()), title=None, axis=alt.Axis(labelLimit=170)),
        x=alt.X(
            "value:Q", title=metric_label(metric), scale=alt.Scale(zero=False, nice=True), axis=_axis(metric)
        ),
        tooltip=_tooltip(metric, [("name:N", "name")], rows),
    )
    known = base.transform_filter("isValid(datum.low)")
    thin = known.mark_rule(style="main", strokeWidth=1.5).encode(x="wide_low:Q", x2="wide_high:Q")
    thick = known.mark_rule(style="main", strokeWidth=5, opacity=0.55).encode(x="low:Q", x2="high:Q")
    dots = base.mark_point(style="main", filled=True, size=80, opacity=1)
    layers = [thin, thick, dots] if any("low" in row for row in rows) else [dots]
    return alt.layer(*layers).properties(width="container", height=max(60, 34 * len(short)))


def setting_chart(
    rows: Rows, *, metric: str, setting: str, values: Sequence[str], series: Sequence[str],
    level: tuple[str, float] | None = None,
) -> AnyChart:  # fmt: skip
    """Draw a metric against the values of a setting, evenly spaced.

    rows   with `at` in addition to the keys of `dot_chart`
    level  name and value of a reference that the setting does not affect, drawn as a dashed line
    """
    import altair as alt

    lines = shorten_names(series, 38)
    base = alt.Chart(inline_data([dict(row) | {"line": lines[row["series"]]} for row in rows])).encode(
        x=alt.X("at:O", sort=list(values), title=setting, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
        y=alt.Y(
            "value:Q", title=metric_label(metric), scale=alt.Scale(zero=False, nice=True), axis=_axis(metric)
        ),
        color=_colour(list(lines.values())),
        tooltip=_tooltip(metric, [("series:N", "line"), ("at:N", setting)], rows),
    )
    layers = [
        *_whiskers(base, rows, "y"),
        base.mark_line(strokeWidth=2),
        base.mark_point(filled=True, size=54),
    ]
    if level is not None:
        at = alt.Chart(inline_data([{"value": level[1], "text": level[0]}])).encode(y="value:Q")
        note = at.mark_text(style="note", align="left", baseline="bottom", dx=4, dy=-3)
        layers += [at.mark_rule(style="guide"), note.encode(text="text:N", x=alt.value(0))]
    return alt.layer(*layers).properties(width="container", height=260)


def _whiskers(base: alt.Chart, rows: Rows, channel: str) -> list[Any]:
    """Draw lines from low to high for the rows that have them."""
    if not any("low" in row for row in rows):
        return []
    ends = {channel: "low:Q", f"{channel}2": "high:Q"}
    return [base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2, opacity=0.6).encode(**ends)]


def _axis(metric: str) -> alt.Axis:
    import altair as alt

    return alt.Axis(format="~%" if is_fraction(metric) else alt.Undefined, tickCount=6, grid=True)


def _colour(lines: list[str]) -> alt.Color:
    import altair as alt

    legend = alt.Legend(
        title=None, orient="top", direction="horizontal", labelLimit=270, columns=legend_columns(lines)
    )
    return alt.Color(
        "line:N", sort=lines, scale=alt.Scale(domain=lines), legend=legend if len(lines) > 1 else None
    )


def _tooltip(metric: str, fields: Sequence[tuple[str, str]], rows: Rows) -> list[alt.Tooltip]:
    import altair as alt

    form = ".1%" if is_fraction(metric) else ".4~r"
    shown = [alt.Tooltip(field, title=title) for field, title in fields]
    shown.append(alt.Tooltip("value:Q", title=metric_label(metric), format=form))
    if any("low" in row for row in rows):
        shown += [alt.Tooltip(f"{end}:Q", title=end, format=form) for end in ("low", "high")]
    return shown
