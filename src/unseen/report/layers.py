"""Layer by layer: how clients are weighed (CSAC's figure 7), how far their models lie apart (figure 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unseen.report.charts import MOST_ROUNDS, thinned
from unseen.report.curves import MOST_LINES, curve_chart
from unseen.report.intervals import dot_chart
from unseen.report.wording import is_number
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import Panels

MOST_LAYERS = 4
KINDS = {"same_domain": "clients of the same domain", "other_domain": "clients of different domains"}


def layer_weights(run: Run) -> Panels:
    """Over the rounds, the weight of every client in a few layers from the first to the last."""
    having = [record for record in run.rounds if _weights(record)]
    names = _weights(having[-1]) if having else {}
    panels: Panels = {}
    for name in thinned(list(names), MOST_LAYERS):
        rows: list[dict[str, Any]] = []
        for record in thinned(having, MOST_ROUNDS):
            rows += _rows(record, _weights(record).get(name, []))
        if rows:
            panels[name] = curve_chart(rows, metric="weight", selected=None).properties(height=200)
    return panels


def model_distances(run: Run) -> Panels:
    """For the first and the last round, distances between clients' models in every layer."""
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
    """The recorded weights of a round: layer -> one number a client."""
    found = record.get("diagnostics") or {}
    layers, weights = found.get("layers") or [], found.get("layer_weights") or []
    return {str(name): row for name, row in zip(layers, weights, strict=False) if isinstance(row, list)}


def _rows(record: dict[str, Any], weights: list[Any]) -> list[dict[str, Any]]:
    """A row a client; a crowd of clients becomes one with the range of its weights."""
    clients = [str(name) for name in record.get("clients") or []]
    known = [(client, value) for client, value in zip(clients, weights, strict=False) if is_number(value)]
    facts = {"round": record["round"], "role": "entry"}
    if len(known) <= MOST_LINES:
        return [facts | {"series": client, "value": value} for client, value in known]
    values = [value for _, value in known]
    span = {"value": sum(values) / len(values), "low": min(values), "high": max(values)}
    return [facts | {"series": f"{len(known)} clients: mean and range"} | span]
