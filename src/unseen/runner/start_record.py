"""What leaves clients before the first round: facts for the records, sums of tables, or the data itself."""

from __future__ import annotations

from typing import Any

from unseen.privacy import DisclosureEntry, DisclosureLog
from unseen.runner.prepare import Setup

FACTS = "numbers of samples and class counts"
TABLE_SUMS = "sums and level counts of table columns"
ALL_DATA = "all training data"
_PASSES = 2
"""A table is summed up once about zero, then about the means that were found."""


def left_beforehand(setup: Setup) -> list[dict[str, Any]]:
    """The start record's lines; they are the same for all clients but for the data's own size."""
    experiment, left = setup.experiment, DisclosureLog()
    federation, data = experiment.federation, experiment.data
    for position in range(len(federation)):
        client = federation[position]
        counted = 3 + len(client.domains) * len(data.classes)
        left.add(client.name, [DisclosureEntry(FACTS, counted, 8 * counted)])
        if setup.encoding is not None:
            columns = setup.encoding.columns
            each = 4 * (len(columns) + 1) + sum(len(column.levels or ()) for column in columns)
            left.add(client.name, [DisclosureEntry(TABLE_SUMS, _PASSES * each, 8 * _PASSES * each)])
    if experiment.method.topology == "pooled":
        inputs, targets = data.inputs[:1], data.targets[:1]
        for domain in federation.sources:
            rows = int((data.domain_of[federation[0].train] == data.domains.index(domain)).sum())
            values = rows * (inputs.size + targets.size)
            left.add(domain, [DisclosureEntry(ALL_DATA, values, rows * (inputs.nbytes + targets.nbytes))])
    return left.entries([federation.names[position] for position in range(len(federation))])
