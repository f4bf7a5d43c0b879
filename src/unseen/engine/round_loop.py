"""The server loop of a run: sample clients, train, aggregate, evaluate, checkpoint.

It does not know where clients run (the engine does) nor how updates are combined (the method does).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from torch import Tensor

from unseen.aggregation import (
    Average,
    MergingPlan,
    NoAverage,
    ServerWork,
    Updates,
    judged_weights,
    step_towards,
)
from unseen.callbacks.base import Callback
from unseen.engine.base import Engine, NoAnswer, Reply
from unseen.engine.exchange import Exchange, blame_sites
from unseen.engine.experiment import EvaluationSet, Experiment, RoundStart
from unseen.engine.round_records import (
    Answers,
    answered,
    client_distances,
    client_sites,
    evaluation_record,
    round_summary,
    scores,
    sums_left,
)
from unseen.errors import UnseenError, UsageError
from unseen.evaluation.selection import (
    VALIDATION_DOMAIN,
    SourceValidation,
    evaluations_since_best,
    mean_metric,
    select,
    without_target,
)
from unseen.federation import sample_clients
from unseen.methods.closed_form import START_ROUND
from unseen.privacy import DisclosureLog, ReceivedUpdate, RoundUpdates
from unseen.runs.checkpoint import Checkpoint, StateStore
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record, Records
from unseen.runs.resume_point import find_checkpoint, require_layout
from unseen.tasks.accumulators import MetricAccumulator
from unseen.training import DivergedError
from unseen.training.schedules import make_schedule


@dataclass(frozen=True)
class Schedule:
    """Number of rounds, sampling of clients, the server's step, and selection of the round that is kept.

    fraction        fraction of the clients that take part in a round
    evaluate_every  rounds between evaluations; the last round is always evaluated
    evaluate_clients  whether each client's own model is evaluated too, before it is merged
    server_lr       X in w <- w + X (w' - w), with w' the new weights of the method's server half; it concerns
                    parameters, buffers are those of w'
    average         of global weights over rounds, evaluated and kept in place of the newest weights
    patience        evaluations without one that selection prefers, after which the run ends; None = no limit
    merging         bounds on what single clients can do to the new weights
    """

    rounds: int
    fraction: float = 1.0
    evaluate_every: int = 1
    evaluate_clients: bool = False
    selection: str = SourceValidation.name
    server_lr: float = 1.0
    average: Average = field(default_factory=NoAverage)
    patience: int | None = None
    merging: MergingPlan = field(default_factory=MergingPlan)

    def evaluates(self, round: int) -> bool:
        """Return whether models are evaluated after a round."""
        return round % self.evaluate_every == 0 or round == self.rounds


class ServerLoop:
    """The server's side of a run in its folder: opens or resumes it, and trains the rounds that are missing.

    It owns what survives a crash: the checkpoint, the records and the clients' state.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        schedule: Schedule,
        *,
        run_id: str,
        make_engine: Callable[[StateStore], Engine],
        callbacks: Callback,
    ) -> None:
        """Resume the folder's run, or start a new one.

        run_id       identity of the run; a checkpoint of another one is refused
        make_engine  makes the engine that reaches the clients
        """
        self.experiment, self.folder, self.schedule, self.callbacks = experiment, folder, schedule, callbacks
        found = find_checkpoint(folder, rounds=schedule.rounds)
        if found is not None and found.run_id != run_id:
            raise UsageError(
                f"{folder.path} contains a run on other data or weights, or its configuration was changed: "
                "choose another --out"
            )
        if found is not None and not found.checked:
            callbacks.on_note("the checkpoint was written without a checksum: damage in it is not noticed")
        self.resumed = found is not None
        self.states = StateStore(folder.client_states, found.client_states if found else None)
        self.engine = make_engine(self.states)
        try:
            self._open(found, run_id)
        except BaseException:
            self.engine.close()
            raise

    def _open(self, found: Checkpoint | None, run_id: str) -> None:
        """Open the records, and the checkpoint that was found or one before the first round."""
        folder, flat = self.folder, self.engine.workspace.flat
        self.layout = flat.layout
        if found is not None:
            require_layout(found, self.layout.digest, size=self.layout.size, folder=folder)
        kept, expected = (found.records_bytes, found.records_sum) if found else (0, "")
        self.records = Records(folder.records, keep_bytes=kept, expected=expected)
        if found is None:
            start = flat.read().cpu()
            found = Checkpoint(run_id, round=0, weights=start, selected=start, layout=self.layout.digest)
        self.checkpoint = found

    def __enter__(self) -> ServerLoop:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    def record(self, event: str, **values: object) -> None:
        """Write an event to the records and pass it to the callbacks."""
        self.callbacks.on_record(self.records.append(event, **values))

    def run(self) -> Checkpoint:
        """Continue from the checkpoint to the last round, or to the round in which the run stops early."""
        point, rounds = self.checkpoint, self.schedule.rounds
        self.callbacks.on_train_start(
            first_round=point.round + 1,
            rounds=rounds,
            samples=self.experiment.samples_in_round(self.schedule.fraction),
        )
        self._start_head()
        for number in range(point.round + 1, rounds + 1):
            if self.stopped:
                break
            started = time.perf_counter()
            # Steps 1 to 5: train and aggregate.
            point.weights = self._train_round(number)
            # Step 6: evaluate the new global model (or its average over rounds), keep it if selection
            # prefers it, and decide whether to go on.
            self.schedule.average.collect(point.average, point.weights, round=number, rounds=rounds)
            if self.schedule.evaluates(number):
                self._evaluate(number)
                self._stop_early(number)
            # Step 7: checkpoint, so that a crash costs at most one round.
            point.round = number
            point.seconds += time.perf_counter() - started
            self._save()
        return point

    def _start_head(self) -> None:
        """Set the head in one exchange before the first round, if the run asks for it and has not had it."""
        point = self.checkpoint
        done = any(
            (each["event"], each.get("round")) == ("round", START_ROUND) for each in self.records.entries
        )
        if self.experiment.head is None or point.round > START_ROUND or done:
            return
        started = time.perf_counter()
        point.weights = self._train_round(START_ROUND)
        sets = self.experiment.evaluation_sets("validation", VALIDATION_DOMAIN, "target")
        answers = dict(zip(sets, self.engine.evaluate(point.weights, sets), strict=True))
        found = evaluation_record(self.experiment, *self._keep_evaluated(START_ROUND, answers))
        self.record("evaluation", round=START_ROUND, **found)
        point.selected = point.weights.clone()
        point.seconds += time.perf_counter() - started
        self._save()

    @property
    def stopped(self) -> bool:
        """Whether the run has ended before its last round; the records say so, also after a crash."""
        return any(record["event"] == "stop" for record in self.records.entries)

    def selected_round(self) -> int:
        """Return the round that selection prefers among those recorded."""
        best = select(self.records.entries, self.schedule.selection, self.experiment.data.task)
        assert best is not None, "the last round is always evaluated"
        return int(best["round"])

    def _train_round(self, number: int) -> Tensor:
        """Train this round's clients and aggregate what they send; return the new global weights."""
        experiment, started = self.experiment, time.perf_counter()
        # Step 1: sample clients. They train at once, or one after another where the method is serial.
        groups = self._client_groups(number)
        weights, opened, left = self.checkpoint.weights, list[RoundUpdates](), DisclosureLog()
        statistics = self.engine.workspace.statistics
        diagnostics: dict[str, Any] = {}
        distances: Record = {}
        own_scores: Record = {}
        bytes_up = bytes_down = 0
        reaction = self._reaction()
        for group in groups:
            as_sent = statistics.to_sent(weights)
            exchange = Exchange(
                experiment,
                self.engine,
                group=group,
                round=number,
                weights=as_sent,
                layout=self.layout,
                state=self.checkpoint.protection,
                left=left,
                fault=partial(self._fault, number),
            )
            # Step 2: broadcast the weights, what the method adds, and what the protection needs.
            received = {} if number == START_ROUND else experiment.method.broadcast(self.checkpoint.server)
            with blame_sites(self.engine, number):
                sealing = exchange.begin()
            own = None if number == START_ROUND else self._own_starts(group, number)
            start = RoundStart(number, weights, received, self.callbacks.on_samples, sealing, reaction, own)
            # Step 3: train locally on every client.
            rows, replies = self.engine.train(group, start)
            # Step 4: log what left the clients, set unusable updates aside, lift the protection.
            with blame_sites(self.engine, number):
                exchange.measure(replies)
                opened.append(exchange.finish(rows, replies, self._sound_replies(number, replies)))
            # Step 5: aggregate by the method's server half.
            plan = MergingPlan() if number == START_ROUND else self.schedule.merging
            updates, acted = plan.bind(
                opened[-1].updates, as_sent, client_sites(experiment, opened[-1].updates)
            )
            work = ServerWork(
                round=number,
                rounds=self.schedule.rounds,
                seed=experiment.seed,
                weights=as_sent,
                updates=updates,
                state=self.checkpoint.server,
                population=len(experiment.federation),
                lr=experiment.plan.in_round(max(number, 1), reaction=reaction).lr,
                asked=tuple(experiment.federation.names[position] for position in group),
            )
            bytes_down += len(group) * (weights.nbytes + sum(value.nbytes for value in received.values()))
            if number in (1, self.schedule.rounds):
                distances = client_distances(experiment, work.updates)
            own_scores |= self._evaluate_clients(number, opened[-1].updates, before=weights)
            with blame_sites(self.engine, number):
                merged = experiment.aggregate(work)
            plan.require_used(updates, method=experiment.method.name)
            diagnostics |= acted
            if group is groups[-1] and self.schedule.server_lr != 1 and number != START_ROUND:
                # Once per round, of a serial method too, and before the protection passes the weights on.
                merged = step_towards(
                    self.checkpoint.weights, merged, rate=self.schedule.server_lr, layout=self.layout
                )
            weights = statistics.from_sent(exchange.conclude(merged), before=weights)
            diagnostics |= work.diagnostics
            bytes_up += exchange.traffic.up
            bytes_down += exchange.traffic.down
        spent = experiment.protection.privacy_spent(self.checkpoint.protection)
        self.record(
            "round",
            **round_summary(opened, diagnostics),
            **distances,
            **({"client_scores": own_scores} if own_scores else {}),
            round=number,
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            left=left.entries([client for part in opened for client in part.updates.clients]),
            **({"protection": spent} if spent else {}),
            **({"lr_factor": reaction} if reaction != 1 else {}),
            seconds=round(time.perf_counter() - started, 4),
        )
        return weights

    def _own_starts(self, group: Sequence[int], number: int) -> Tensor | None:
        """Ask a method whose models circulate for what each client starts from; None = the global weights."""
        experiment = self.experiment
        if not experiment.method.circulates:
            return None
        own = experiment.method.start_states(
            [experiment.federation.names[position] for position in group],
            round=number,
            seed=experiment.seed,
            state=self.checkpoint.server,
        )
        for row in () if own is None else own:
            row.copy_(self.engine.workspace.statistics.from_sent(row, before=self.checkpoint.weights))
        return own

    def _reaction(self) -> float:
        """Return the factor of the learning rate that follows from the evaluations so far."""
        schedule = make_schedule(self.experiment.plan.schedule, self.experiment.plan.schedule_settings)
        if not schedule.watches_validation:
            return 1.0
        if not self.experiment.evaluation_sets("validation"):
            raise UsageError(
                f"--schedule {self.experiment.plan.schedule} follows the sources' validation samples, but "
                "there are none: use a larger --validation, or another --schedule"
            )
        evaluations = [record for record in self.records.entries if record["event"] == "evaluation"]
        return schedule.reaction([without_target(each) for each in evaluations], self.experiment.data.task)

    def _client_groups(self, number: int) -> list[list[int]]:
        """Sample the round's clients, in groups that train at the same time."""
        chosen, method = self._sample_clients(number), self.experiment.method
        if method.topology != "serial" or number == START_ROUND:
            return [chosen]
        order = method.visiting_order(chosen, round=number, seed=self.experiment.seed)
        return [[client] for client in order]

    def _sample_clients(self, number: int) -> list[int]:
        """Sample the round's clients; the protection samples them where its guarantee depends on it."""
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
        """Reject unusable updates with a recorded reason and return the others."""
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
        self.record("fault", round=number, client=client, reason=reason)

    def _evaluate(self, number: int) -> None:
        """Evaluate the global model or its average, and keep what was evaluated if selection now prefers it.

        An average that needs the plain weights' loss costs one more evaluation, on the sources' validation
        data; while there is no average yet, that evaluation is part of the other one.
        """
        started, point, average = time.perf_counter(), self.checkpoint, self.schedule.average
        plain = self._evaluate_plain() if average.needs_loss else {}
        judged = judged_weights(average, point.average, point.weights, layout=self.layout)
        known = plain if judged is point.weights else {}
        sets = self.experiment.evaluation_sets("validation", VALIDATION_DOMAIN, "target")
        missing = [key for key in sets if key not in known]
        answers = known | dict(zip(missing, self.engine.evaluate(judged, missing), strict=True))
        found = evaluation_record(self.experiment, *self._keep_evaluated(number, answers))
        if plain and not known:
            found["left"] += sums_left(*answered(plain))
        if average != NoAverage():
            found["average"] = average.facts(point.average)
        self.record("evaluation", round=number, **found, seconds=round(time.perf_counter() - started, 4))
        best = select(self.records.entries, self.schedule.selection, self.experiment.data.task)
        if best is not None and best["round"] == number:
            point.selected = judged.clone()

    def _evaluate_clients(self, number: int, updates: Updates, *, before: Tensor) -> Record:
        """Evaluate what each client sent on every domain, if the run asks for it; client -> scores."""
        if not (self.schedule.evaluate_clients and number != START_ROUND and self.schedule.evaluates(number)):
            return {}
        sets = self.experiment.evaluation_sets("validation", VALIDATION_DOMAIN, "target")
        statistics, found = self.engine.workspace.statistics, {}
        for client, row in zip(updates.clients, updates.rows, strict=True):
            model = statistics.from_sent(row.clone(), before=before)
            answers = dict(zip(sets, self.engine.evaluate(model, sets), strict=True))
            found[client] = scores(*answered(answers))
        return found

    def _evaluate_plain(self) -> Answers:
        """Evaluate the plain weights on the sources' validation data, and tell the average their loss."""
        sets = self.experiment.evaluation_sets("validation")
        answers = dict(zip(sets, self.engine.evaluate(self.checkpoint.weights, sets), strict=True))
        evaluation = {"scores": scores(*answered(answers))}
        loss = mean_metric(evaluation, "validation", "loss")
        self.schedule.average.observe(self.checkpoint.average, loss)
        return answers

    def _stop_early(self, number: int) -> None:
        """Record that the run ends if nothing has improved for too long, or the average is complete."""
        plan, task = self.schedule, self.experiment.data.task
        reason = plan.average.end(self.checkpoint.average)
        if plan.patience is not None:
            waited = evaluations_since_best(self.records.entries, plan.selection, task)
            if waited >= plan.patience:
                reason = f"no evaluation was better than that {waited} before (--patience)"
        if reason and number < plan.rounds:
            self.record("stop", round=number, rounds=plan.rounds, reason=reason)

    def _keep_evaluated(
        self, number: int, answers: Answers
    ) -> tuple[list[EvaluationSet], list[MetricAccumulator]]:
        """Keep the sets that were evaluated; the others are recorded with the reason."""
        for (domain, _), answer in answers.items():
            if isinstance(answer, NoAnswer):
                reason = f"was not evaluated: {answer.reason}"
                self._fault(number, domain, reason)
        sets, found = answered(answers)
        if not found:
            raise UnseenError(f"round {number}: no site could evaluate the model; continue with --resume")
        return sets, found

    def _save(self) -> None:
        self.checkpoint.client_states = dict(self.states.versions)
        self.checkpoint.records_bytes, self.checkpoint.records_sum = self.records.bytes, self.records.checksum
        self.records.sync()
        self.checkpoint.save(self.folder.checkpoint)
        self.states.forget_old()
