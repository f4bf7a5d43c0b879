"""Figures of values that single methods record: attention and layer weights (CSAC), transferability (MDFL).

CSAC: the attention of its alignment (equation 9), the weights of clients per layer (figure 7) and the
distances between clients' models (figure 4). MDFL: the transferability graph (figure 2), where every
(domain, class) pair is a circle and distances between circles approximate those between the pairs' mean
features. Methods record the distances by index; names come from the run's data.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unseen.report.charts import MOST_ROUNDS, downsample, heat_map, inline_data
from unseen.report.curves import MOST_LINES, curve_chart
from unseen.report.formatting import is_matrix, is_number
from unseen.report.intervals import dot_chart
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels
MOST_LAYERS = 4
Floats = npt.NDArray[np.float64]


def attention(run: Run) -> Panels:
    """Draw, for the first and the last round of calibration, the weights a_{l,m}, mean over the clients."""
    found = [(record["round"], matrices) for record in run.rounds if (matrices := _by_client(record))]
    ends = dict([found[0], found[-1]]) if found else {}
    return {f"round {number}": _heat_map(matrices) for number, matrices in ends.items()}


def _by_client(record: dict[str, Any]) -> list[list[list[float]]]:
    """Return the clients' matrices of a round; none where they differ in size."""
    value = (record.get("diagnostics") or {}).get("attention")
    matrices = [matrix for matrix in value.values() if _is_whole(matrix)] if isinstance(value, dict) else []
    return matrices if len({(len(matrix), len(matrix[0])) for matrix in matrices}) == 1 else []


def _is_whole(matrix: object) -> bool:
    return is_matrix(matrix) and all(is_number(weight) for row in matrix for weight in row)


def _heat_map(matrices: list[list[list[float]]]) -> AnyChart:
    """Draw a row per layer of the merged model and a column per layer of the clients' own."""
    down = [f"merged {place + 1}" for place in range(len(matrices[0]))]
    across = [f"own {place + 1}" for place in range(len(matrices[0][0]))]
    rows: list[dict[str, Any]] = []
    for row, merged in enumerate(down):
        for column, own in enumerate(across):
            weights = [matrix[row][column] for matrix in matrices]
            mean = fmean(weights)
            span = f"{min(weights):.3f} to {max(weights):.3f}"
            rows.append({"down": merged, "across": own, "value": mean, "text": f"{mean:.2f}", "span": span})
    tooltip = [
        ("down:N", "layer of the merged model", ""),
        ("across:N", "layer of a client's own", ""),
        ("value:Q", "weight, mean of the clients", ".3f"),
        ("span:N", "from client to client", ""),
    ]
    return heat_map(rows, across=across, down=down, titles=(None, None), tooltip=tooltip)


KINDS = {"same_domain": "clients of the same domain", "other_domain": "clients of different domains"}


def layer_weights(run: Run) -> Panels:
    """Draw, over the rounds, the weight of each client in a few layers from the first to the last."""
    having = [record for record in run.rounds if _weights(record)]
    names = _weights(having[-1]) if having else {}
    panels: Panels = {}
    for name in downsample(list(names), MOST_LAYERS):
        rows: list[dict[str, Any]] = []
        for record in downsample(having, MOST_ROUNDS):
            rows += _rows(record, _weights(record).get(name, []))
        if rows:
            panels[name] = curve_chart(rows, metric="weight", selected=None).properties(height=200)
    return panels


def model_distances(run: Run) -> Panels:
    """Draw, for the first and the last round, distances between clients' models in every layer."""
    panels: Panels = {}
    for record in run.rounds:
        found = record.get("distances") or {}
        names = [str(name) for name in found.get("layers") or []]
        rows: list[dict[str, Any]] = [
            {"name": name, "series": words, "value": value}
            for kind, words in KINDS.items()
            for name, value in zip(names, found.get(kind) or [], strict=False)
            if is_number(value)
        ]
        if rows:
            shown = list(dict.fromkeys(row["series"] for row in rows))
            label = f"round {record['round']}"
            panels[label] = dot_chart(rows, metric="distance", names=names, series=shown)
    return panels


def _weights(record: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the recorded weights of a round: layer -> one number per client."""
    found = record.get("diagnostics") or {}
    layers, weights = found.get("layers") or [], found.get("layer_weights") or []
    return {str(name): row for name, row in zip(layers, weights, strict=False) if isinstance(row, list)}


def _rows(record: dict[str, Any], weights: list[Any]) -> list[dict[str, Any]]:
    """Return a row per client; many clients become one row with the range of their weights."""
    clients = [str(name) for name in record.get("clients") or []]
    known = [(client, value) for client, value in zip(clients, weights, strict=False) if is_number(value)]
    facts = {"round": record["round"], "role": "entry"}
    if len(known) <= MOST_LINES:
        return [facts | {"series": client, "value": value} for client, value in known]
    values = [value for _, value in known]
    span = {"value": sum(values) / len(values), "low": min(values), "high": max(values)}
    return [facts | {"series": f"{len(known)} clients: mean and range"} | span]


def transferability_layout(matrix: npt.ArrayLike) -> Floats:
    """Compute points (n x 2) whose distances approximate a matrix of distances as well as a plane allows.

    Classical multidimensional scaling: eigenvectors of the doubly centred squared distances, of which
    the largest entry is made positive so that the same distances always give the same plot.
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
    """Draw the graph of the first round that has one, and of the last, to show what training changed."""
    having = [record for record in run.rounds if (record.get("diagnostics") or {}).get("transferability")]
    chosen = {record["round"]: record for record in (having[:1] + having[-1:])}
    return {
        f"round {number}": _graph(run, record["diagnostics"]["transferability"])
        for number, record in chosen.items()
    }


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
    base = alt.Chart(inline_data(rows)).encode(
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
