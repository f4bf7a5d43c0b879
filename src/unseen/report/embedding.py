"""Features in two dimensions (t-SNE): coloured by class and by domain, before training and after."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from unseen.errors import UnseenError
from unseen.report.charts import inline_data
from unseen.report.curves import legend_columns
from unseen.report.formatting import HELD_OUT_MARK, shorten_names
from unseen.runs.folder import RunFolder
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

STAGES = {"before": "before training", "after": "after training"}
MOST_NAMES = 24


def feature_maps(run: Run) -> Panels:
    """Draw a panel per colouring and stage; none where no features were computed."""
    path = RunFolder(run.folder).features
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return _panels(run, found)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UnseenError(
            f"{path} is damaged ({error}): delete it, or write it again with --features"
        ) from error


def _panels(run: Run, found: dict[str, Any]) -> Panels:
    domains = [name + HELD_OUT_MARK if name in run.held_out else name for name in found["domains"]]
    held_out_first = sorted(domains, key=lambda name: not name.endswith(HELD_OUT_MARK))
    of_domain = [domains[number] for number in found["domain"]]
    of_class = [found["classes"][number] for number in found["target"]]
    colourings = {"class": (of_class, list(found["classes"])), "domain": (of_domain, held_out_first)}
    panels: Panels = {}
    for kind, (names, order) in colourings.items():
        for stage, words in STAGES.items():
            if names and stage in found["stages"]:
                points = found["stages"][stage]
                rows = [
                    {"x": x, "y": y, "series": name, "domain": domain}
                    for x, y, name, domain in zip(points["x"], points["y"], names, of_domain, strict=True)
                ]
                shown = [name for name in order if name in set(names)]
                panels[f"by {kind}, {words}"] = _scatter(rows, kind=kind, order=shown)
    return panels


def _scatter(rows: list[dict[str, Any]], *, kind: str, order: list[str]) -> AnyChart:
    import altair as alt

    short = shorten_names(order, 30)
    names = list(short.values())
    legend = alt.Legend(
        title=None, orient="top", direction="horizontal", symbolType="circle", columns=legend_columns(names)
    )
    scale = alt.Scale(nice=False, zero=False, padding=8)
    bare = alt.Axis(labels=False, title=None, grid=False, domain=False)
    tooltip = [alt.Tooltip("series:N", title=kind)]
    tooltip += [alt.Tooltip("domain:N", title="domain")] if kind != "domain" else []
    chart: alt.Chart = (
        alt.Chart(inline_data([row | {"line": short[row["series"]]} for row in rows]))
        .mark_circle(size=26, opacity=0.75)
        .encode(
            x=alt.X("x:Q", scale=scale, axis=bare),
            y=alt.Y("y:Q", scale=scale, axis=bare),
            color=alt.Color(
                "line:N",
                sort=names,
                scale=alt.Scale(domain=names),
                legend=legend if len(names) <= MOST_NAMES else None,
            ),
            tooltip=tooltip,
        )
        .properties(width="container", height=320)
    )
    return chart
