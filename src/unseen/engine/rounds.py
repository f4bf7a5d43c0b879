"""The rounds of a run: who takes part, local work, merging, evaluation, records, checkpoint.

Knows nothing of where clients live (that is the engine's part) nor of what is done with updates
(the method's part).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unseen.aggregation import ServerWork, Updates
from unseen.engine.base import Engine, Reply
from unseen.engine.checkpoint import Checkpoint
from unseen.engine.experiment import EvaluationSet, Experiment
from unseen.engine.folder import RunFolder
from unseen.engine.listener import Listener
from unseen.engine.records import Record, Records
from unseen.engine.states import StateStore
from unseen.evaluation import Selection, Tally, select
from unseen.federation import participants
from unseen.models import Layout
from unseen.training import DivergedError, reason_to_reject


@dataclass(frozen=True)
class Schedule:
    """How long, with whom, and how a round's model is chosen.

    fraction        part of the clients that take part in a round
    evaluate_every  rounds between evaluations; the last round is always evaluated
    """

    rounds: int
    fraction: float = 1.0
    evaluate_every: int = 1
    selection: Selection = "source-validation"


class Rounds:
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
        listener: Listener,
    ) -> None:
        self.experiment, self.engine, self.layout, self.schedule = experiment, engine, layout, schedule
        self.checkpoint, self.records, self.states = checkpoint, records, states
        self.folder, self.listener = folder, listener

    def run(self) -> Checkpoint:
        """Go on from the checkpoint to the last round."""
        point, rounds = self.checkpoint, self.schedule.rounds
        self.listener.training_starts(
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
        chosen = participants(
            experiment.federation, fraction=self.schedule.fraction, round=number, seed=experiment.seed
        ).tolist()
        groups = [[client] for client in chosen] if experiment.method.topology == "serial" else [chosen]
        weights, replies, work = self.checkpoint.weights, list[Reply](), None
        for group in groups:
            received = experiment.method.broadcast(self.checkpoint.server)
            rows, answers = self.engine.train(
                group, round=number, weights=weights, received=received, progress=self.listener.samples_done
            )
            work = ServerWork(
                round=number,
                seed=experiment.seed,
                weights=weights,
                updates=self._sound_updates(number, rows, answers),
                state=self.checkpoint.server,
            )
            weights = experiment.method.server(work)
            replies += answers
        assert work is not None
        self._record_round(number, replies, work, received, time.perf_counter() - started)
        return weights

    def _sound_updates(self, number: int, rows: Tensor, replies: Sequence[Reply]) -> Updates:
        """Set unusable updates aside with a recorded reason and keep the others."""
        reasons = [
            reason_to_reject(reply.update, self.layout.size) if reply.update else reply.reason
            for reply in replies
        ]
        for reply, reason in zip(replies, reasons, strict=True):
            if reason:
                self._record("fault", round=number, client=reply.client, reason=reason)
        kept = [position for position, reason in enumerate(reasons) if not reason]
        if not kept:
            raise DivergedError(
                f"round {number}: no client returned a usable update ({replies[0].client!r}: {reasons[0]}); "
                "a lower --lr often helps"
            )
        updates = [update for position in kept if (update := replies[position].update) is not None]
        return Updates(
            clients=tuple(replies[position].client for position in kept),
            rows=rows if len(kept) == len(rows) else rows[kept],
            samples=torch.tensor([update.samples for update in updates], dtype=torch.float64),
            steps=torch.tensor([update.steps for update in updates], dtype=torch.float64),
            extras=tuple(update.extras for update in updates),
            layout=self.layout,
        )

    def _record_round(
        self,
        number: int,
        replies: Sequence[Reply],
        work: ServerWork,
        received: dict[str, Tensor],
        seconds: float,
    ) -> None:
        updates = [reply.update for reply in replies if reply.update is not None]
        total = sum(update.samples for update in updates)
        diagnostics = dict(work.diagnostics)
        for key in {key for update in updates for key in update.diagnostics}:
            diagnostics[key] = {
                reply.client: reply.update.diagnostics[key]
                for reply in replies
                if reply.update is not None and key in reply.update.diagnostics
            }
        down = len(replies) * (work.weights.nbytes + sum(value.nbytes for value in received.values()))
        self._record(
            "round",
            round=number,
            clients=[reply.client for reply in replies],
            loss=sum(update.loss * update.samples for update in updates) / total,
            seconds=round(seconds, 4),
            samples=sum(update.seen for update in updates),
            bytes_up=sum(update.nbytes for update in updates),
            bytes_down=down,
            diagnostics=diagnostics,
        )

    def _evaluate(self, number: int) -> None:
        """Evaluate the global model, and keep it if selection now prefers it."""
        started = time.perf_counter()
        sets = self.experiment.evaluation_sets("validation", "target")
        tallies = self.engine.evaluate(self.checkpoint.weights, sets)
        self._record(
            "evaluation",
            round=number,
            scores=scores(sets, tallies),
            seconds=round(time.perf_counter() - started, 4),
        )
        best = select(self.records.entries, self.schedule.selection, self.experiment.data.task)
        if best is not None and best["round"] == number:
            self.checkpoint.selected = self.checkpoint.weights.clone()

    def _save(self) -> None:
        self.checkpoint.client_states = dict(self.states.versions)
        self.checkpoint.records_bytes = self.records.bytes
        self.checkpoint.save(self.folder.checkpoint)
        self.states.forget_old()

    def _record(self, event: str, **values: object) -> None:
        self.listener.recorded(self.records.append(event, **values))


def scores(sets: Sequence[EvaluationSet], tallies: Sequence[Tally]) -> list[Record]:
    """Describe tallies as they stand in the records."""
    return [
        {"domain": domain, "split": split, "count": tally.count, "metrics": tally.metrics()}
        for (domain, split), tally in zip(sets, tallies, strict=True)
    ]
