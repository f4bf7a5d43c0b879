"""What the records say about a round and an evaluation: pure functions of what the server received."""

from __future__ import annotations

from collections.abc import Sequence

from unseen.aggregation import Updates, pair_distances, select_recorded_layers, split_layers
from unseen.engine.base import NoAnswer
from unseen.engine.experiment import EvaluationSet, Experiment
from unseen.evaluation.evaluate import score_groups
from unseen.evaluation.selection import VALIDATION_DOMAIN
from unseen.privacy import DisclosureEntry, DisclosureLog, RoundUpdates
from unseen.privacy.disclosure import DETAILS, TARGET_METRICS, TEST_METRICS, VALIDATION_METRICS
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator

_METRICS = {
    "validation": VALIDATION_METRICS,
    VALIDATION_DOMAIN: VALIDATION_METRICS,
    "test": TEST_METRICS,
    "target": TARGET_METRICS,
}
"""The kind of value that an evaluation of each split discloses."""
Answers = dict[EvaluationSet, MetricAccumulator | NoAnswer]
"""What was evaluated on every set, or the reason why it was not."""


def answered(answers: Answers) -> tuple[list[EvaluationSet], list[MetricAccumulator]]:
    """Keep the sets that were evaluated."""
    found = [(key, answer) for key, answer in answers.items() if not isinstance(answer, NoAnswer)]
    return [key for key, _ in found], [accumulator for _, accumulator in found]


def round_summary(opened: Sequence[RoundUpdates], diagnostics: Record) -> Record:
    """Summarize a round's clients for the records; their own diagnostics are keyed by their names."""
    sent = {client: own for part in opened for client, own in part.diagnostics.items()}
    keys = sorted({key for own in sent.values() for key in own})
    of_clients = {key: {client: own[key] for client, own in sent.items() if key in own} for key in keys}
    weights = [float(part.updates.samples.sum()) for part in opened]
    return {
        "clients": [client for part in opened for client in part.updates.clients],
        "loss": sum(part.loss * weight for part, weight in zip(opened, weights, strict=True)) / sum(weights),
        "samples": sum(part.seen for part in opened),
        "diagnostics": {**of_clients, **diagnostics},
    }


def evaluation_record(
    experiment: Experiment, sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator]
) -> Record:
    """Describe an evaluation for the records: scores per domain, and per group if there are groups."""
    record: Record = {"scores": scores(sets, accumulators), "left": sums_left(sets, accumulators)}
    if experiment.data.groups:
        splits = [split for _, split in sets]
        record["groups"] = score_groups(splits, accumulators, experiment.data.groups)
    return record


def sums_left(
    sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator], *, kind: str = DETAILS
) -> list[Record]:
    """List what an evaluation disclosed about the domains: sums over their samples.

    kind  what a measurement added
    """
    left = DisclosureLog()
    for (domain, split), found in zip(sets, accumulators, strict=True):
        details = found.detail_numbers
        plain = found.numbers - details
        left.add(domain, [DisclosureEntry(_METRICS[split], plain, 8 * plain)])
        if details:
            left.add(domain, [DisclosureEntry(kind, details, 8 * details)])
    return left.entries()


def scores(sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator]) -> list[Record]:
    """Convert evaluations to the form of the records."""
    return [
        {"domain": domain, "split": split, "count": found.count, "metrics": found.metrics()}
        for (domain, split), found in zip(sets, accumulators, strict=True)
    ]


def client_distances(experiment: Experiment, updates: Updates) -> Record:
    """Measure how far clients' models are apart, for the records; empty unless two or more train at once.

    A protection hides single clients from the records too, so nothing is recorded with one.
    """
    if len(updates) < 2 or experiment.protection.name != "none":
        return {}
    federation = experiment.federation
    held = [federation[federation.position(client)].domains for client in updates.clients]
    layers = split_layers(updates.layout)
    shown = [layers[place] for place in select_recorded_layers(layers, updates.layout)]
    found = pair_distances(updates.rows, [one[0] if len(one) == 1 else None for one in held], shown)
    return {"distances": found._asdict()} if found.layers else {}


def client_sites(experiment: Experiment, updates: Updates) -> list[str]:
    """Return the site of every client: its domain, or its own name where it has several."""
    federation = experiment.federation
    held = [federation[federation.position(client)].domains for client in updates.clients]
    return [own[0] if len(own) == 1 else client for own, client in zip(held, updates.clients, strict=True)]
