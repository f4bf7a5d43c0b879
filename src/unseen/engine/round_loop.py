"""The rounds of a run: who takes part, local work, merging, evaluation, records, checkpoint.

Knows nothing of where clients live (that is the engine's part) nor of what is done with updates
(the method's part).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor

from unseen.aggregation import ServerWork, Updates, pair_distances, select_recorded_layers, split_layers
from unseen.callbacks.base import Callback
from unseen.engine.base import Engine, NoAnswer, Reply
from unseen.engine.exchange import Exchange
from unseen.engine.experiment import EvaluationSet, Experiment, RoundStart
from unseen.errors import UnseenError
from unseen.evaluation.group_metrics import score_groups
from unseen.evaluation.selection import VALIDATION_DOMAIN, SourceValidation, select
from unseen.federation import sample_clients
from unseen.models import Layout
from unseen.privacy import DisclosureEntry, DisclosureLog, ReceivedUpdate, RoundUpdates
from unseen.privacy.disclosure import TARGET_METRICS, TEST_METRICS, VALIDATION_METRICS
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.client_state import StateStore
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, Records
from unseen.tasks.accumulators import MetricAccumulator
from unseen.training import DivergedError

_METRICS = {
    "validation": VALIDATION_METRICS,
    VALIDATION_DOMAIN: VALIDATION_METRICS,
    "test": TEST_METRICS,
    "target": TARGET_METRICS,
}
"""The kind of value that an evaluation of each split lets leave."""


@dataclass(frozen=True)
class Schedule:
    """How long, with whom, and how a round's model is chosen.

    fraction        part of the clients that take part in a round
    evaluate_every  rounds between evaluations; the last round is always evaluated
    """

    rounds: int
    fraction: float = 1.0
    evaluate_every: int = 1
    selection: str = SourceValidation.name


class ServerLoop:
    """Runs all rounds that a checkpoint still lacks."""

    def __init__(
        self,
        experiment: Experiment,
        engine: Engine,
        *,
        layout: Layout,
        schedule: Schedule,
        checkpoint: Checkpoint,
        records: Records,
        states: StateStore,
        folder: RunFolder,
        callbacks: Callback,
    ) -> None:
        self.experiment, self.engine, self.layout, self.schedule = experiment, engine, layout, schedule
        self.checkpoint, self.records, self.states = checkpoint, records, states
        self.folder, self.callbacks = folder, callbacks

    def run(self) -> Checkpoint:
        """Go on from the checkpoint to the last round."""
        point, rounds = self.checkpoint, self.schedule.rounds
        self.callbacks.on_train_start(
            first_round=point.round + 1,
            rounds=rounds,
            samples=self.experiment.samples_in_round(self.schedule.fraction),
        )
        for number in range(point.round + 1, rounds + 1):
            started = time.perf_counter()
            point.weights = self._train_round(number)
            if number % self.schedule.evaluate_every == 0 or number == rounds:
                self._evaluate(number)
            point.round = number
            point.seconds += time.perf_counter() - started
            self._save()
        return point

    def _train_round(self, number: int) -> Tensor:
        """Let this round's clients work and merge what they send."""
        experiment, started = self.experiment, time.perf_counter()
        chosen = self._chosen(number)
        groups = [chosen]
        if experiment.method.topology == "serial":
            order = experiment.method.visiting_order(chosen, round=number, seed=experiment.seed)
            groups = [[client] for client in order]
        weights, opened, left = self.checkpoint.weights, list[RoundUpdates](), DisclosureLog()
        diagnostics: dict[str, Any] = {}
        distances: Record = {}
        bytes_up = bytes_down = 0
        for group in groups:
            exchange = Exchange(
                experiment,
                self.engine,
                group=group,
                round=number,
                weights=weights,
                layout=self.layout,
                state=self.checkpoint.protection,
                left=left,
                fault=partial(self._fault, number),
            )
            received = experiment.method.broadcast(self.checkpoint.server)
            sealing = exchange.begin()
            start = RoundStart(number, weights, received, self.callbacks.on_samples, sealing)
            rows, replies = self.engine.train(group, start)
            exchange.measure(replies)
            opened.append(exchange.finish(rows, replies, self._sound_replies(number, replies)))
            work = ServerWork(
                round=number,
                rounds=self.schedule.rounds,
                seed=experiment.seed,
                weights=weights,
                updates=opened[-1].updates,
                state=self.checkpoint.server,
                population=len(experiment.federation),
            )
            bytes_down += len(group) * (weights.nbytes + sum(value.nbytes for value in received.values()))
            if number in (1, self.schedule.rounds):
                distances = client_distances(experiment, work.updates)
            weights = exchange.conclude(experiment.method.server(work))
            diagnostics |= work.diagnostics
            bytes_up += exchange.traffic.up
            bytes_down += exchange.traffic.down
        spent = experiment.protection.privacy_spent(self.checkpoint.protection)
        self._record(
            "round",
            **summary(opened, diagnostics),
            **distances,
            round=number,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            left=left.entries([client for part in opened for client in part.updates.clients]),
            **({"protection": spent} if spent else {}),
            seconds=round(time.perf_counter() - started, 4),
        )
        return weights

    def _chosen(self, number: int) -> list[int]:
        """The round's clients: drawn by the protection where its guarantee rests on how."""
        experiment, fraction = self.experiment, self.schedule.fraction
        if not experiment.protection.draws_clients:
            drawn = sample_clients(
                experiment.federation, fraction=fraction, round=number, seed=experiment.seed
            )
            return cast(list[int], drawn.tolist())
        population, state = len(experiment.federation), self.checkpoint.protection
        return list(
            experiment.protection.sample_clients(
                population, fraction=fraction, round=number, seed=experiment.seed, state=state
            )
        )

    def _sound_replies(self, number: int, replies: Sequence[Reply]) -> list[ReceivedUpdate]:
        """Set unusable updates aside with a recorded reason and return the others."""
        accepted, reasons = [], []
        for reply in replies:
            if reply.update is not None and not reply.reason:
                accepted.append(ReceivedUpdate(reply.client, reply.update))
            else:
                reasons.append(f"{reply.client!r}: {reply.reason}")
                self._fault(number, reply.client, reply.reason)
        if reasons and not accepted:
            raise DivergedError(
                f"round {number}: no client returned a usable update ({reasons[0]}); a lower --lr often helps"
            )
        return accepted

    def _fault(self, number: int, client: str, reason: str) -> None:
        self._record("fault", round=number, client=client, reason=reason)

    def _evaluate(self, number: int) -> None:
        """Evaluate the global model, and keep it if selection now prefers it."""
        started = time.perf_counter()
        sets = self.experiment.evaluation_sets("validation", VALIDATION_DOMAIN, "target")
        answers = self.engine.evaluate(self.checkpoint.weights, sets)
        self._record(
            "evaluation",
            round=number,
            **evaluation_record(self.experiment, *self._evaluated(number, sets, answers)),
            seconds=round(time.perf_counter() - started, 4),
        )
        best = select(self.records.entries, self.schedule.selection, self.experiment.data.task)
        if best is not None and best["round"] == number:
            self.checkpoint.selected = self.checkpoint.weights.clone()

    def _evaluated(
        self, number: int, sets: Sequence[EvaluationSet], answers: Sequence[MetricAccumulator | NoAnswer]
    ) -> tuple[list[EvaluationSet], list[MetricAccumulator]]:
        """Keep the sets that were evaluated; the others are recorded with the reason."""
        asked = [(key, answer) for key, answer in zip(sets, answers, strict=True)]
        for (domain, _), answer in asked:
            if isinstance(answer, NoAnswer):
                reason = f"was not evaluated: {answer.reason}"
                self._fault(number, domain, reason)
        found = [(key, answer) for key, answer in asked if not isinstance(answer, NoAnswer)]
        if not found:
            raise UnseenError(f"round {number}: the model could be evaluated nowhere; go on with --resume")
        return [key for key, _ in found], [accumulator for _, accumulator in found]

    def _save(self) -> None:
        self.checkpoint.client_states = dict(self.states.versions)
        self.checkpoint.records_bytes = self.records.bytes
        self.records.sync()
        self.checkpoint.save(self.folder.checkpoint)
        self.states.forget_old()

    def _record(self, event: str, **values: object) -> None:
        self.callbacks.on_record(self.records.append(event, **values))


def summary(opened: Sequence[RoundUpdates], diagnostics: Record) -> Record:
    """What the records say of a round's clients; their own diagnostics stand under their names."""
    told = {client: own for part in opened for client, own in part.diagnostics.items()}
    keys = sorted({key for own in told.values() for key in own})
    of_clients = {key: {client: own[key] for client, own in told.items() if key in own} for key in keys}
    weights = [float(part.updates.samples.sum()) for part in opened]
    return {
        "clients": [client for part in opened for client in part.updates.clients],
        "loss": sum(part.loss * weight for part, weight in zip(opened, weights, strict=True)) / sum(weights),
        "samples": sum(part.seen for part in opened),
        "diagnostics": {**diagnostics, **of_clients},
    }


def evaluation_record(
    experiment: Experiment, sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator]
) -> Record:
    """What the records say of an evaluation: every domain's scores, and every group's if there are groups."""
    record: Record = {"scores": scores(sets, accumulators), "left": sums_left(sets, accumulators)}
    if experiment.data.groups:
        splits = [split for _, split in sets]
        record["groups"] = score_groups(splits, accumulators, experiment.data.groups)
    return record


def sums_left(sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator]) -> list[Record]:
    """What an evaluation let leave the domains' sites: sums over their samples."""
    left = DisclosureLog()
    for (domain, split), found in zip(sets, accumulators, strict=True):
        left.add(domain, [DisclosureEntry(_METRICS[split], found.numbers, 8 * found.numbers)])
    return left.entries()


def scores(sets: Sequence[EvaluationSet], accumulators: Sequence[MetricAccumulator]) -> list[Record]:
    """Describe evaluations as the records hold them."""
    return [
        {"domain": domain, "split": split, "count": found.count, "metrics": found.metrics()}
        for (domain, split), found in zip(sets, accumulators, strict=True)
    ]


def client_distances(experiment: Experiment, updates: Updates) -> Record:
    """The record's `distances`; empty unless two or more clients' models are there at a time.

    A protection hides single clients from the records too, so that under any of them nothing is said.
    """
    if len(updates) < 2 or experiment.protection.name != "none":
        return {}
    federation = experiment.federation
    held = [federation[federation.position(client)].domains for client in updates.clients]
    layers = split_layers(updates.layout)
    shown = [layers[place] for place in select_recorded_layers(layers, updates.layout)]
    found = pair_distances(updates.rows, [one[0] if len(one) == 1 else None for one in held], shown)
    return {"distances": found._asdict()} if found.layers else {}
