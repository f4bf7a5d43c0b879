"""Tables that describe images, one row each: which rows are used, and their domains, targets and groups.

The rules are those of tables without images: rows without a domain or a target are left out, and the target
column decides the task unless `--task` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Indices
from unseen.data.sources import DataRequest
from unseen.data.tables.site_table import check_target, own_rows, rows_with_target
from unseen.data.tables.table_loader import (
    check_columns,
    check_domains,
    complete_rows,
    decide_task,
    explain_target,
    read_names,
    read_target,
)

ROW = "unseen: number of the row"
"""Column that is added to find out which rows were kept."""
_GROUPS = ("patient", "patientid", "subject", "subjectid", "participantid", "person", "group")
"""Names, without separators, of columns that probably name who or what is on an image."""


@dataclass(frozen=True)
class ImageRows:
    """The rows that are used, by their positions in the table, and what they say of each image."""

    rows: Indices
    domains: Sequence[str]
    targets: npt.NDArray[Any]
    classes: tuple[str, ...]
    task: str
    groups: Sequence[str | None] | None
    notes: tuple[str, ...]
    advice: tuple[str, ...]

    def select(self, column: Any) -> list[Any]:
        """Return the values of another column in the rows that are used."""
        return column.take(self.rows).to_pylist()  # type: ignore[no-any-return]


def select_rows(path: Path, table: Any, request: DataRequest, site: str | None = None) -> ImageRows:
    """Choose the rows with a domain and a target; at a site, those of its own domain."""
    import pyarrow

    table = table.append_column(ROW, pyarrow.array(np.arange(table.num_rows)))
    if site is None:
        check_columns(path, table, request)
        task = request.task or decide_task(table[request.target_column])
        table, notes = complete_rows(path, table, request)
        domains = [str(name) for name in read_names(table[request.domain_column])]
        check_domains(path, request.domain_column, sorted(set(domains)), len(domains))
    else:
        table, notes = own_rows(site, table, request)
        check_target(table, request)
        task = request.task or decide_task(table[request.target_column])
        table, left_out = rows_with_target(table, request.target_column)
        notes = [*notes, *left_out]
        domains = [site] * table.num_rows
    targets, classes = read_target(path, table, request.target_column, task)
    notes += explain_target(table, request, classes)
    return ImageRows(
        rows=table[ROW].to_numpy(),
        domains=domains,
        targets=targets,
        classes=classes,
        task=task,
        groups=read_names(table[request.group_column]) if request.group_column else None,
        notes=tuple(notes),
        advice=() if request.group_column else tuple(_advise_groups(table)),
    )


def _advise_groups(table: Any) -> list[str]:
    """Advise to name groups where a column looks like it and its values repeat."""
    for name in table.column_names:
        if "".join(filter(str.isalnum, name.casefold())) not in _GROUPS:
            continue
        named = [value for value in read_names(table[name]) if value is not None]
        several = len(named) - len(set(named))
        if several:
            return [
                f"column {name!r} repeats: images of one {name} may be trained on and validated on; keep "
                f"them together with --group-column {name}"
            ]
    return []


def with_usual_columns(request: DataRequest, names: Sequence[str], usual: Sequence[str]) -> DataRequest:
    """Return a request whose target column is the usual one of a format where the user names none."""
    if request.target_column in names or request.target_column != DataRequest.target_column:
        return request
    found = next((name for name in usual if name in names), None)
    return request if found is None else replace(request, target_column=found)
