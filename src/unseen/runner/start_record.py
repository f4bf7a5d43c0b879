"""The start record of a run: its data, its clients, and what clients disclose before the first round."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from unseen import __version__
from unseen.config import RunConfig
from unseen.engine import Engine
from unseen.privacy import DisclosureEntry, DisclosureLog
from unseen.runner.prepare import Setup

LISTED_CLIENTS = 1000
"""Runs with more clients do not list them individually in the records."""
FACTS = "numbers of samples and class counts"
TABLE_SUMS = "sums and level counts of table columns"
ALL_DATA = "all training data"
_PASSES = 2
"""A table is summed first about zero, then about the means."""


def now() -> str:
    """Return the time for the records, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def validation_domains(config: RunConfig) -> dict[str, Any]:
    """Return the entry `validate_on` of records and results; empty without such domains."""
    return {"validate_on": list(config.validate_on)} if config.validate_on else {}


def start_record(setup: Setup, engine: Engine) -> dict[str, Any]:
    """Describe the run before its first round."""
    data, federation = setup.experiment.original_data, setup.experiment.federation
    clients = [federation[position] for position in range(min(len(federation), LISTED_CLIENTS))]
    return {
        "time": now(),
        "run_id": setup.run_id,
        "version": __version__,
        "parameters": len(engine.workspace.flat.parameters),
        "data": {
            "name": data.name,
            "task": data.task,
            "classes": data.classes,
            "domains": data.domains,
            "input_shape": data.input_shape,
            "class_counts": data.class_counts(),
            "fingerprint": data.fingerprint,
            "notes": [
                *data.notes,
                *setup.experiment.network.notes,
                *engine.notes,
                *setup.notes,
            ],
            **({"groups": data.groups} if data.groups else {}),
        },
        "clients": [
            {
                "name": client.name,
                "domains": client.domains,
                "train": len(client.train),
                "validation": len(client.validation),
                "test": len(client.test),
            }
            for client in clients
        ],
        "client_count": len(federation),
        "left": [*disclosed_before_training(setup, engine), *engine.initial_disclosures],
        "held_out": setup.config.hold_out,
        **validation_domains(setup.config),
    }


def disclosed_before_training(setup: Setup, engine: Engine) -> list[dict[str, Any]]:
    """List what clients disclose before the first round: counts, sums of tables, or the data itself.

    An engine that has the sums of tables sent from elsewhere lists them itself.
    """
    experiment, left = setup.experiment, DisclosureLog()
    federation, data = experiment.federation, experiment.original_data
    for position in range(len(federation)):
        client = federation[position]
        counted = 3 + len(client.domains) * len(data.classes)
        left.add(client.name, [DisclosureEntry(FACTS, counted, 8 * counted)])
        if setup.encoding is not None and engine.holds_data:
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
