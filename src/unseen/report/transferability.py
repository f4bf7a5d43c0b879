"""The transferability graph (MDFL's figure 2): every (domain, class) pair as a circle in the plane.

Circles lie near one another where the mean features of their pairs do. Method files record the distances
by number; names come from the run's data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unseen.report.charts import inline
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

Floats = npt.NDArray[np.float64]
NAME = "transferability"


def transferability_layout(matrix: npt.ArrayLike) -> Floats:
    """Points (n x 2) whose distances come as near to a matrix of distances as two dimensions allow.

    Classical multidimensional scaling: eigenvectors of the doubly centred squared distances, of which
    the largest entry is made positive so that the same distances always give the same picture.
    """
    distances = np.asarray(matrix, dtype=np.float64)
    squares = ((distances + distances.T) / 2) ** 2
    centred = squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    points = np.zeros((len(distances), 2))
    kept = min(2, len(distances))
    points[:, :kept] = (vectors * np.sqrt(values.clip(min=0)))[:, ::-1][:, :kept]
    largest = points[np.abs(points).argmax(0), [0, 1]]
    return points * np.where(largest < 0, -1.0, 1.0)


def transferability_graph(run: Run) -> Panels:
    """The graph of the first round that has one, and of the last: what training has changed."""
    having = [record for record in run.rounds if (record.get("diagnostics") or {}).get(NAME)]
    chosen = {record["round"]: record for record in (having[:1] + having[-1:])}
    return {f"round {number}": _graph(run, record["diagnostics"][NAME]) for number, record in chosen.items()}


def _graph(run: Run, pairs: dict[str, Any]) -> AnyChart:
    import altair as alt

    points = transferability_layout(pairs["distances"])
    rows = [
        {
            "x": float(x),
            "y": float(y),
            "domain": _name(run.data.get("domains"), domain),
            "class": _name(run.data.get("classes"), label),
            "samples": samples,
        }
        for (x, y), domain, label, samples in zip(
            points, pairs["domains"], pairs["classes"], pairs["samples"], strict=True
        )
    ]
    reach = 1.15 * float(np.abs(points).max()) or 1.0
    scale = alt.Scale(domain=[-reach, reach], nice=False)
    axis = alt.Axis(tickCount=5)
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("x:Q", title="first dimension of distance", scale=scale, axis=axis),
        y=alt.Y("y:Q", title="second dimension of distance", scale=scale, axis=axis),
        tooltip=[alt.Tooltip(f"{field}:N", title=field) for field in ("domain", "class", "samples")],
    )
    colours = alt.Scale(domain=list(dict.fromkeys([*run.held_out, *domains])))
    legend = alt.Legend(title=None, orient="top", columns=4, values=domains)
    circles = base.mark_circle(opacity=0.55).encode(
        color=alt.Color("domain:N", scale=colours, legend=legend),
        size=alt.Size("samples:Q", legend=None, scale=alt.Scale(range=[60, 900])),
    )
    names = base.mark_text(style="note").encode(text="class:N")
    return alt.layer(circles, names).properties(width="container", height=360)


def _name(names: Any, number: int) -> str:
    return str(names[number]) if isinstance(names, list) and number < len(names) else str(number)
