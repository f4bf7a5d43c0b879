"""Which layers CSAC draws to which: the attention weights of its alignment (equation 9)."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from unseen.report.charts import heat_map
from unseen.report.wording import is_matrix, is_number
from unseen.runs.reader import Run

if TYPE_CHECKING:
    from unseen.report.charts import AnyChart, Panels

NAME = "attention"


def attention(run: Run) -> Panels:
    """For the first and the last round of calibration, the weights a_{l,m}, mean over the clients."""
    found = [(record["round"], matrices) for record in run.rounds if (matrices := _by_client(record))]
    ends = dict([found[0], found[-1]]) if found else {}
    return {f"round {number}": _heat_map(matrices) for number, matrices in ends.items()}


def _by_client(record: dict[str, Any]) -> list[list[list[float]]]:
    """The clients' matrices of a round; none where they differ in size."""
    value = (record.get("diagnostics") or {}).get(NAME)
    matrices = [matrix for matrix in value.values() if _is_whole(matrix)] if isinstance(value, dict) else []
    return matrices if len({(len(matrix), len(matrix[0])) for matrix in matrices}) == 1 else []


def _is_whole(matrix: object) -> bool:
    return is_matrix(matrix) and all(is_number(weight) for row in matrix for weight in row)


def _heat_map(matrices: list[list[list[float]]]) -> AnyChart:
    """A row a layer of the merged model, a column a layer of the clients' own."""
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
