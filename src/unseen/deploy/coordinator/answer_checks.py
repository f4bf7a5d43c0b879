"""The coordinator believes nothing: every answer of a site is checked here before anything uses it.

An answer is measured against what the coordinator knows without the site: the census (sample counts), the
layout of the model, and the plan of the run. Whatever does not fit raises an UnseenError, which the engine
records as a fault of that site; the round goes on with the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from unseen.calibration import Measurement
from unseen.deploy.flower.message import SiteMessage, unpack_weights
from unseen.engine.base import NoAnswer
from unseen.engine.experiment import Experiment
from unseen.errors import UnseenError
from unseen.evaluation.selection import VALIDATION_DOMAIN
from unseen.methods import Method
from unseen.methods.closed_form import START_ROUND
from unseen.models import Layout
from unseen.printable import is_printable, printable
from unseen.privacy import Message, Protection
from unseen.runs.checkpoint import protection_key
from unseen.tasks.accumulators import MetricAccumulator
from unseen.tasks.detail_accumulators import make_measured
from unseen.training import Update, reason_to_reject
from unseen.training.preprocessing import count_batches

LARGEST_LOSS = 1e100
"""A loss beyond it would overflow in sums."""
MOST_NUMBERS, MOST_KEYS, LONGEST_KEY = 4096, 64, 100
"""Bounds of a client's diagnostics: numbers and names, and the length of a name."""
WHOLE_DOMAINS = ("target", VALIDATION_DOMAIN)
"""Splits with all samples of a domain, whose number per class the census tells."""
Evaluated = MetricAccumulator | NoAnswer
T = TypeVar("T")


class AnswerChecks:
    """Reads the answers of sites to training requests and to messages of the protection.

    module  the model that clients train; with the method it tells the shapes of what they send
    """

    def __init__(self, experiment: Experiment, *, layout: Layout, module: nn.Module) -> None:
        self.experiment, self.layout, self.module = experiment, layout, module
        self._descriptions: dict[bool, Mapping[str, Tensor]] = {}

    # answers to a training request

    def read_update(
        self, client: str, answer: SiteMessage, *, round: int, neighbours: Sequence[str] = ()
    ) -> Update:
        """Read one client's update; `neighbours` are the other clients of its site."""
        self._require_own_arrays(answer, [client, *neighbours], plain=f"{client}/weights")
        found = answer.header.get("layout")
        if found != self.layout.digest:
            _refuse(
                f"has another model (layout {printable(found, longest=40)}, here {self.layout.digest}); "
                "run the same version of Unseen everywhere"
            )
        values = _mapping(_mapping(answer.header, "clients"), client)
        withheld = values.get("withheld", "")
        if not isinstance(withheld, str):
            _refuse("did not say in words why it withholds its update")
        if withheld:
            return Update(torch.empty(0), samples=0, steps=0, seen=0, loss=0.0, withheld=printable(withheld))
        if f"{client}/weights" not in answer.arrays:
            _refuse("sent an unreadable update: its weights are missing")
        update = Update(
            weights=unpack_weights(answer.arrays[f"{client}/weights"], self.experiment.update_dtype),
            samples=_whole(values, "samples"),
            steps=_whole(values, "steps"),
            seen=_whole(values, "seen"),
            loss=_number(values, "loss"),
            extras=answer.below(f"{client}/extras/"),
            diagnostics=read_diagnostics(values.get("diagnostics")),
        )
        self._check_update(client, update, round)
        return update

    def _check_update(self, client: str, update: Update, round: int) -> None:
        """Compare an update with the census, the layout and the plan."""
        experiment = self.experiment
        protection, halves = experiment.protection, experiment.halves_in(round)
        announced = len(experiment.federation[experiment.federation.position(client)].train)
        hidden = update.samples == 0 and protection.seals
        if update.samples != announced and not hidden:
            _refuse(f"says that it trained on {update.samples} samples, its census says {announced}")
        self._check_effort(update, announced, round)
        allowed = set(halves.traits.extra_kinds) | set(protection.sends)
        allowed = set(protection.sends) if protection.seals else allowed
        for kind in update.extras:
            if kind not in allowed:
                _refuse(f"sent {printable(kind, longest=100)!r}, which nobody asked for")
        if protection.seals:
            if len(update.weights):
                _refuse("sent weights in the clear, which the protection seals")
            reason = protection.explain_unusable_update(
                update, halves.traits, self.layout, self._describe_extras(round)
            )
        else:
            self._check_described(update.extras, round)
            reason = reason_to_reject(update, self.layout.size) or ""
            reason = reason or protection.explain_unusable_update(
                update, halves.traits, self.layout, self._describe_extras(round)
            )
            if not reason and isinstance(halves, Method):
                reason = halves.explain_unusable_extras(
                    update, plan=experiment.plan, outputs=experiment.data.outputs, own=self._places(client)
                )
        if reason:
            raise UnseenError(printable(reason))

    def _check_effort(self, update: Update, samples: int, round: int) -> None:
        """Compare steps and samples seen with the plan: exactly where it tells them, else with its limit."""
        experiment = self.experiment
        plan, method = experiment.plan, experiment.method
        exact = (
            round != START_ROUND
            and type(method).client is Method.client
            and type(experiment.protection).before_training is Protection.before_training
            and not experiment.protection.seals
        )
        if exact:
            steps = plan.epochs * count_batches(samples, plan.batch_size, plan.batches_per_epoch)
            each = samples if plan.batches_per_epoch is None else plan.batches_per_epoch * plan.batch_size
            if (update.steps, update.seen) != (steps, plan.epochs * each):
                _refuse(
                    f"says that it took {update.steps} steps on {update.seen} samples, the plan says {steps} "
                    f"on {plan.epochs * each}"
                )
            return
        if not 0 <= update.steps <= self._most_steps or not 0 <= update.seen <= self._most_seen:
            _refuse(
                f"says that it took {update.steps} steps on {update.seen} samples, the whole run has at most "
                f"{self._most_steps} on {self._most_seen}"
            )

    def _places(self, client: str) -> list[int]:
        """Return the positions of a client's domains among the sources in the order of their names."""
        federation = self.experiment.federation
        sources = sorted(federation.sources)
        return [sources.index(domain) for domain in federation[federation.position(client)].domains]

    @cached_property
    def _most_steps(self) -> int:
        """More steps than a client can take in a whole run: on all samples, with several networks."""
        plan = self.experiment.plan
        phases = self.experiment.method.training_schedule(
            rounds=plan.rounds, local_epochs=plan.epochs, batches_per_epoch=plan.batches_per_epoch
        )
        pool = int(self.experiment.federation.train_sizes.sum())
        planned = sum(
            max(epochs, 0) * count_batches(pool, plan.batch_size, batches) for epochs, batches in phases
        )
        return 8 * max(planned, pool)

    @cached_property
    def _most_seen(self) -> int:
        pool = int(self.experiment.federation.train_sizes.sum())
        return self._most_steps * max(self.experiment.plan.batch_size, pool)

    def _describe_extras(self, round: int) -> Mapping[str, Tensor]:
        """Return what the extras of a round look like, as far as the method tells, without memory."""
        start = round == START_ROUND
        if start not in self._descriptions:
            self._descriptions[start] = self.experiment.halves_in(round).describe_extras(self.module)
        return self._descriptions[start]

    def _check_described(self, extras: Mapping[str, Tensor], round: int) -> None:
        for kind, expected in self._describe_extras(round).items():
            if kind not in extras:
                _refuse(f"did not send {kind!r}")
            found = extras[kind]
            if found.shape != expected.shape or found.dtype is not expected.dtype:
                _refuse(
                    f"sent {kind!r} as {_form(found)} of shape {tuple(found.shape)}, expected "
                    f"{_form(expected)} of shape {tuple(expected.shape)}"
                )

    def _require_own_arrays(self, answer: SiteMessage, clients: Sequence[str], *, plain: str = "") -> None:
        """Refuse arrays that belong to none of the site's clients."""
        for name in answer.arrays:
            owner, _, rest = name.partition("/")
            mine = owner in clients and (not plain or rest == "weights" or rest.startswith("extras/"))
            if not mine:
                _refuse(f"sent an array {printable(name, longest=100)!r}, which nobody asked for")

    # answers to a message of the protection

    def read_answer(
        self, client: str, answer: SiteMessage, asked: Message, *, neighbours: Sequence[str] = ()
    ) -> Message:
        """Read one client's answer to the protection; a refusal is an UnseenError with the site's words."""
        self._require_own_arrays(answer, [client, *neighbours])
        refusals = _mapping(answer.header, "refusals")
        if client in refusals:
            _refuse(printable(refusals[client]) or "refused without a reason")
        protection, message = self.experiment.protection, answer.below(f"{client}/")
        for kind in message:
            if kind not in protection.sends:
                _refuse(f"answered with {printable(kind, longest=100)!r}, which nobody asked for")
        if reason := protection.explain_unusable_answer(message, asked):
            raise UnseenError(printable(reason))
        return message

    def read_versions(
        self, clients: Sequence[str], answer: SiteMessage, *, round: int, former: Mapping[str, int]
    ) -> dict[str, int]:
        """Read the versions of the clients' state: their own only, from this round or as they were."""
        own = {key for client in clients for key in (client, protection_key(client))}
        found = _mapping(answer.header, "versions")
        for key, version in found.items():
            if key not in own:
                _refuse(
                    f"named a version of the state of {printable(key, longest=100)!r}, which is not its own"
                )
            if isinstance(version, bool) or version not in (round, former.get(key)):
                _refuse(f"named a version of its state that it cannot have: {printable(version, longest=40)}")
        return dict(found)


def read_sums(
    experiment: Experiment,
    site: str,
    splits: Sequence[str],
    answer: SiteMessage,
    measurement: Measurement | None = None,
) -> list[Evaluated]:
    """Read the sums of a site's evaluations, each compared with the number of samples of its split.

    measurement  what the site was asked to sum beyond the plain metrics
    """
    data, found = experiment.data, [dict[str, Any]() for _ in splits]
    places = {str(number): arrays for number, arrays in enumerate(found)}
    for key, array in answer.arrays.items():
        number, _, name = key.partition("/")
        if number not in places:
            _refuse(f"sent an array {printable(key, longest=100)!r}, which nobody asked for")
        places[number][name] = array
    answers = list[Evaluated]()
    for split, arrays in zip(splits, found, strict=True):
        rows = experiment.evaluation_indices(site, split)
        empty = make_measured(
            data.task_type, data.outputs, target_scale=experiment.target_scale, measurement=measurement
        )
        try:
            sums = empty.from_arrays(arrays)
            whole = data.task_type.has_classes and split in WHOLE_DOMAINS
            counts = np.bincount(data.targets[rows], minlength=data.outputs).tolist() if whole else None
            reason = sums.explain_impossible(len(rows), counts)
        except UnseenError as error:
            reason = str(error)
        answers.append(NoAnswer(f"sent {reason.removeprefix('sent ')}") if reason else sums)
    return answers


def without_lone_losses(found: Mapping[T, Evaluated]) -> dict[T, Evaluated]:
    """Refuse a loss that is not finite where another site has a finite one for the same weights.

    If no loss is finite, the model has diverged and the sites are right.
    """
    finite = {
        key: math.isfinite(float(getattr(sums, "loss", 0.0)))
        for key, sums in found.items()
        if not isinstance(sums, NoAnswer)
    }
    if not any(finite.values()):
        return dict(found)
    lone = NoAnswer("sent a loss that is not finite, which other sites' is")
    return {key: sums if finite.get(key, True) else lone for key, sums in found.items()}


def read_diagnostics(value: object) -> dict[str, Any]:
    """Read a client's diagnostics: names with a number, a list or a matrix of numbers each, all bounded."""
    if not isinstance(value, dict) or len(value) > MOST_KEYS:
        _refuse(f"sent diagnostics that are not a table of at most {MOST_KEYS} names")
    left = MOST_NUMBERS
    for name, entry in value.items():
        if not is_printable(name, longest=LONGEST_KEY):
            _refuse(f"sent diagnostics with an unusable name {printable(name, longest=LONGEST_KEY)!r}")
        left -= _count_numbers(entry, depth=2)
    if left < 0:
        _refuse(f"sent diagnostics with more than {MOST_NUMBERS} numbers")
    return value


def _count_numbers(entry: object, *, depth: int) -> int:
    """Count the numbers of a diagnostic; refuse anything else."""
    if isinstance(entry, list) and depth and len(entry) <= MOST_NUMBERS:
        return sum(_count_numbers(each, depth=depth - 1) for each in entry)
    number = isinstance(entry, float) or (isinstance(entry, int) and abs(entry) < 1 << 63)
    if entry is not None and not number:
        _refuse("sent diagnostics that are not numbers, lists or matrices of them")
    return 1


def find_disagreeing(forms: Mapping[str, Hashable]) -> list[str]:
    """Find the clients whose values have another form than most clients'; none if no form has most."""
    counted = Counter(forms.values()).most_common(1)
    if not counted or counted[0][1] * 2 <= len(forms):
        return []
    return [client for client, form in forms.items() if form != counted[0][0]]


def form_of_extras(update: Update, kind: str) -> Hashable:
    """Describe how an extra is built: its type and all sides but the first, which may follow the data."""
    value = update.extras[kind]
    return str(value.dtype), value.ndim, tuple(value.shape[1:])


def form_of_diagnostic(value: object) -> Hashable:
    """Describe how a diagnostic is built: a number, or the lengths of its lists."""
    if isinstance(value, list):
        return tuple(map(form_of_diagnostic, value))
    return "number"


def explain_unreadable(error: Exception, what: str) -> str:
    """Turn an error in reading an answer into the reason of a fault, whatever the site has sent."""
    if isinstance(error, UnseenError):
        return printable(str(error))
    return printable(f"sent {what} ({type(error).__name__}: {error})")


def _mapping(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    if not isinstance(found, dict):
        _refuse(f"sent an unreadable update: {printable(key, longest=100)!r} is missing or not a table")
    return found


def _whole(values: Mapping[str, Any], key: str) -> int:
    found = values.get(key)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 1 << 62:
        _refuse(f"sent {printable(found, longest=40)} as its number of {key}, expected a whole number")
    return found


def _number(values: Mapping[str, Any], key: str) -> float:
    found = values.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        _refuse(f"sent {printable(found, longest=40)} as its {key}, expected a number")
    if not -LARGEST_LOSS < found < LARGEST_LOSS or not math.isfinite(found):
        _refuse("its training loss is not finite")
    return float(found)


def _form(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _refuse(reason: str) -> NoReturn:
    raise UnseenError(reason)
