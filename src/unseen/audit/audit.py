"""The audit of a finished run: attacks on its updates under every protection, and on its final model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unseen.audit.attack import AttackResult, attack
from unseen.audit.gradient_inversion import AttackEffort
from unseen.audit.gradient_view import gradient_views
from unseen.audit.membership import Membership, member_test
from unseen.audit.protocol_attacks import ProtocolCheck, check_protocol
from unseen.audit.reconstruction_score import Guess, average_image, guesses, pixels
from unseen.audit.replay import ReplayedRound, choose_images, replay_round, single_step
from unseen.config import RunConfig
from unseen.data import DataSet, Indices
from unseen.data.sources import Progress, no_progress
from unseen.engine import Experiment
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.privacy import PROTECTIONS, protection_type
from unseen.runner.features import trained_network
from unseen.runner.prepare import prepare_run
from unseen.runs.folder import RunFolder
from unseen.serving import load_model

At = Literal["start", "end"]


@dataclass(frozen=True)
class AuditPlan:
    """What to attack, and with which effort.

    images   how many images are in each client's step
    clients  how many clients' messages are attacked, one at a time
    at       whether clients start from the run's initial or from its final weights
    against  protections with their settings; empty = all that support the run's method
    """

    images: int = 1
    clients: int = 3
    at: At = "start"
    against: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    effort: AttackEffort = field(default_factory=AttackEffort)

    def __post_init__(self) -> None:
        numbers = {"images": self.images, "clients": self.clients, "iterations": self.effort.iterations}
        for name, value in {**numbers, "restarts": self.effort.restarts}.items():
            if value < 1:
                raise UsageError(f"--{name} must be at least 1, not {value}")
        if self.at not in ("start", "end"):
            raise unknown_name("moment", self.at, ("start", "end"))
        for name in self.against:
            protection_type(name)


@dataclass(frozen=True)
class ProtectionAudit:
    """One protection and the results of the attacks on it.

    notes  the protection's own statements for the whole run: its cost, its epsilon
    """

    name: str
    settings: dict[str, Any]
    statement: str
    notes: tuple[str, ...]
    attacks: tuple[AttackResult, ...]


@dataclass(frozen=True)
class Audit:
    """All findings.

    recorded    the statement on protection in the run's result
    refused     protections that do not support this run, with the reason
    impossible  why no inversion was tried; empty if it was
    protocol    attacks on the protocol of the run's protection, and of those that the plan names
    """

    config: RunConfig
    plan: AuditPlan
    run_id: str
    data: str
    recorded: dict[str, Any]
    in_round: int
    samples: tuple[int, int]
    audited: tuple[ProtectionAudit, ...]
    guesses: dict[str, Guess]
    refused: dict[str, str]
    impossible: str
    membership: Membership | None
    protocol: tuple[ProtocolCheck, ...] = ()


def audit_run(
    folder: Path,
    *,
    plan: AuditPlan | None = None,
    progress: Progress = no_progress,
    data: DataSet | None = None,
) -> Audit:
    """Attack a finished run; needs its folder and its data, changes neither.

    data  samples already in memory, in place of those that the run's configuration names
    """
    plan, place = plan or AuditPlan(), RunFolder(folder)
    if not place.result.exists():
        raise UsageError(f"{folder} contains no finished run; give the folder that 'unseen train' wrote")
    config, saved = RunConfig.load_recorded(place.config), load_model(folder)
    setup = prepare_run(config, data=data, progress=progress)
    experiment = setup.experiment
    if saved.card.run_id != setup.run_id:
        raise UsageError(f"{folder} was trained on other data or weights than its configuration now finds")
    progress("membership test", 0, 1)
    membership = member_test(experiment, trained_network(experiment, saved, folder))
    protocol = _check_protocols(config, experiment, plan, progress)
    impossible = _why_no_inversion(experiment)
    sizes = experiment.federation.train_sizes
    inverted = _Inversions(config, experiment, plan, place.model, progress)
    if not impossible:
        inverted.run()
    return Audit(
        config=setup.config,
        plan=plan,
        run_id=setup.run_id,
        data=experiment.data.name,
        recorded=json.loads(place.result.read_text(encoding="utf-8")).get("protection") or {},
        in_round=len(inverted.images) or len(experiment.federation),
        samples=(int(sizes.min()), int(sizes.max())),
        audited=tuple(inverted.audited),
        guesses=inverted.guesses,
        refused=inverted.refused,
        impossible=impossible,
        membership=membership,
        protocol=protocol,
    )


def _check_protocols(
    config: RunConfig, experiment: Experiment, plan: AuditPlan, progress: Progress
) -> tuple[ProtocolCheck, ...]:
    """Attack the protocol of the run's own protection, and of those that the plan names."""
    found = list[ProtocolCheck]()
    for name in dict.fromkeys([config.protect, *plan.against]):
        progress(f"attacks on the protocol of {name}", 0, 1)
        given = plan.against.get(name) or (config.protect_settings if name == config.protect else {})
        variant = replace(config, protect=name, protect_settings=dict(given))
        try:
            prepared = prepare_run(variant, data=experiment.original_data).experiment
        except UnseenError:
            continue  # the inversion attack reports why it cannot be used
        found += check_protocol(prepared)
    return tuple(found)


class _Inversions:
    """The attacks under one protection after another, with one progress bar."""

    def __init__(
        self, config: RunConfig, experiment: Experiment, plan: AuditPlan, model: Path, progress: Progress
    ) -> None:
        self.config, self.experiment, self.plan, self.progress = config, experiment, plan, progress
        self.model = model if plan.at == "end" else None
        self.audited: list[ProtectionAudit] = []
        self.guesses: dict[str, Guess] = {}
        self.refused: dict[str, str] = {}
        self.images: dict[str, Indices] = {}
        self._done = self._total = 0

    def run(self) -> None:
        """Observe a round under every protection, then attack all views."""
        experiment, federation = self.experiment, self.experiment.federation
        self.images = choose_images(experiment, count=self.plan.images, fraction=self.config.fraction)
        self.holdings = {name: federation[federation.position(name)].train for name in self.images}
        self.average = average_image(experiment)
        originals = pixels(experiment.data, np.concatenate(list(self.images.values())))
        self.guesses = guesses(originals, self.average, seed=experiment.seed)
        rounds = [found for found in map(self._observe, self._against()) if found is not None]
        each = self.plan.effort.iterations * self.plan.effort.restarts
        self._total = each * sum(self._attacks(observed) for *_, observed in rounds)
        for prepared, settings, notes, observed in rounds:
            self.audited.append(self._attack(prepared, settings, notes, observed))

    def _against(self) -> list[tuple[str, Mapping[str, Any]]]:
        own = {self.config.protect: self.config.protect_settings}
        if self.plan.against:
            return [(name, given or own.get(name, {})) for name, given in self.plan.against.items()]
        order = dict.fromkeys(["none", self.config.protect, *PROTECTIONS])
        return [(name, own.get(name, {})) for name in order]

    def _observe(
        self, protection: tuple[str, Mapping[str, Any]]
    ) -> tuple[Experiment, dict[str, Any], tuple[str, ...], ReplayedRound] | None:
        name, settings = protection
        variant = replace(self.config, protect=name, protect_settings=dict(settings))
        self.progress(f"a round with {name}", 0, 1)
        try:
            setup = prepare_run(variant, data=self.experiment.data)
            prepared = single_step(setup.experiment, self.images)
            observed = replay_round(prepared, rounds=self.config.rounds, model=self.model)
        except UnseenError as error:
            if self.plan.against.get(name):
                raise
            self.refused[name] = str(error)
            return None
        return prepared, dict(vars(setup.experiment.protection.settings)), setup.notes, observed

    def _attacks(self, observed: ReplayedRound) -> int:
        return len(self._victims(observed)) + (observed.merged is not None)

    def _victims(self, observed: ReplayedRound) -> list[str]:
        return list(observed.messages)[: self.plan.clients]

    def _attack(
        self,
        experiment: Experiment,
        settings: dict[str, Any],
        notes: tuple[str, ...],
        observed: ReplayedRound,
    ) -> ProtectionAudit:
        seen = gradient_views(
            observed,
            self._victims(observed),
            images=self.plan.images,
            lr=experiment.plan.lr,
            bits=int(settings.get("bits", 24)),
        )
        attacks = [
            attack(
                experiment,
                observed,
                view,
                self.images,
                holdings=self.holdings,
                average=self.average,
                effort=self.plan.effort,
                tick=lambda: self._tick(observed.protection),
            )
            for view in seen
        ]
        return ProtectionAudit(observed.protection, settings, observed.statement, notes, tuple(attacks))

    def _tick(self, protection: str) -> None:
        self._done += 1
        self.progress(f"attacking {protection}", self._done, self._total)


def _why_no_inversion(experiment: Experiment) -> str:
    """Return why no attack is possible (it rebuilds labelled 8-bit images from updates); empty if it is."""
    data = experiment.data
    if experiment.method.topology == "pooled":
        return f"{experiment.method.name} pools the data itself: there are no updates to attack"
    if experiment.method.default_rounds is not None:
        return f"{experiment.method.name} trains nothing: clients send sums, not gradients"
    if experiment.head is not None:
        return "the head was set by an exchange before the first round, which the attack does not repeat"
    if not data.is_image or data.is_measured:
        return "the attack rebuilds images of 8 bits, and this run trained on others or on features"
    if not data.task_type.has_classes:
        return "the attack infers classes from the update, and this run predicts a quantity"
    return ""
