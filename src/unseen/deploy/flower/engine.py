"""The Flower engine: sends weights to sites, and receives updates and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.calibration import Measurement
from unseen.deploy.coordinator.answer_checks import (
    AnswerChecks,
    explain_unreadable,
    find_disagreeing,
    form_of_diagnostic,
    form_of_extras,
    read_sums,
    without_lone_losses,
)
from unseen.deploy.flower.message import Arrays, SiteMessage, to_arrays
from unseen.deploy.flower.sites import Sites
from unseen.engine.base import Answer, NoAnswer, Reply
from unseen.engine.experiment import EvaluationSet, Experiment, RoundStart, Workspace
from unseen.errors import UnseenError
from unseen.models import model_digest
from unseen.privacy import Message
from unseen.runs.checkpoint import StateStore, protection_key
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator


class FlowerEngine:
    """Trains and evaluates at sites; its own experiment has their sample counts but no samples.

    states     only the current version of every client's state; the state itself is at the sites
    job        information from which sites build the experiment themselves
    initial_disclosures what the sites disclosed about their data
    min_sites  a round with fewer valid updates ends the run
    """

    holds_data = False

    def __init__(
        self,
        experiment: Experiment,
        states: StateStore,
        *,
        sites: Sites,
        job: dict[str, Any],
        initial_disclosures: Sequence[Record],
        min_sites: int,
    ) -> None:
        self.workspace, self.initial_disclosures = Workspace(experiment), initial_disclosures
        self.states, self.sites, self.min_sites = states, sites, min_sites
        self.layout = self.workspace.flat.layout
        self.job = {**job, "layout": model_digest(self.workspace.module)}
        self.checks = AnswerChecks(experiment, layout=self.layout, module=self.workspace.module)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the report: where the data is."""
        return ("the data stayed at the sites: images or points of the held-out domain cannot be shown",)

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Train the clients of all sites at the same time."""
        names, at_site = self._places(clients)
        needed = min(self.min_sites, len(at_site))
        self.sites.wait_for(at_site, at_least=needed)
        arrays = to_arrays(start.received, prefix="received/") | to_arrays(start.sealing, prefix="sealing/")
        reaction = {} if start.reaction == 1 else {"reaction": start.reaction}
        messages = {
            site: SiteMessage(self._about(own, start.round) | reaction, arrays | _starts(own, names, start))
            for site, own in at_site.items()
        }
        answers = self.sites.ask("train", messages)
        replies = self._without_disagreeing(
            {
                name: self._reply(name, own, answers[site], start)
                for site, own in at_site.items()
                for name in own
            }
        )
        for site, own in at_site.items():
            if not isinstance(answers[site], NoAnswer):
                self._tell(site, [replies[name] for name in own], start)
        self._require_enough(at_site, replies, start.round, needed)
        rows = torch.zeros(len(names), self.layout.size)
        for row, name in zip(rows, names, strict=True):
            update = replies[name].update
            if update is not None and len(update.weights) == len(row):
                row.copy_(update.weights)
        return rows, [replies[name] for name in names]

    def _places(self, clients: Sequence[int]) -> tuple[list[str], dict[str, list[str]]]:
        """Return the clients' names, in order and grouped by site."""
        federation = self.workspace.experiment.federation
        at_site: dict[str, list[str]] = {}
        for position in clients:
            client = federation[position]
            at_site.setdefault(client.domains[0], []).append(client.name)
        return [federation.names[position] for position in clients], at_site

    def _about(self, clients: Sequence[str], round: int) -> dict[str, Any]:
        """Build the header part about clients: their names and the versions of their state."""
        keys = [key for name in clients for key in (name, protection_key(name))]
        versions = {key: self.states.versions[key] for key in keys if key in self.states.versions}
        return {"job": self.job, "round": round, "clients": list(clients), "versions": versions}

    def _reply(
        self, client: str, own: Sequence[str], answer: SiteMessage | NoAnswer, start: RoundStart
    ) -> Reply:
        """Read a client's update and the versions of its state; what does not fit is its site's fault."""
        if isinstance(answer, NoAnswer):
            return Reply(client, None, answer.reason)
        try:
            update = self.checks.read_update(client, answer, round=start.round, neighbours=own)
            self._keep_versions(own, answer, start.round)
        except Exception as error:
            return Reply(client, None, explain_unreadable(error, "an unreadable update"))
        if update.withheld:
            return Reply(client, None, update.withheld)
        start.progress(update.seen)
        return Reply(client, update)

    def _keep_versions(self, own: Sequence[str], answer: SiteMessage, round: int) -> None:
        former = self.states.versions
        self.states.versions.update(self.checks.read_versions(own, answer, round=round, former=former))

    def _without_disagreeing(self, replies: dict[str, Reply]) -> dict[str, Reply]:
        """Set aside updates whose extras are built differently from most; drop such diagnostics alone."""
        updates = {name: reply.update for name, reply in replies.items() if reply.update is not None}
        if self.workspace.experiment.protection.seals:
            return replies
        for kind in {kind for update in updates.values() for kind in update.extras}:
            forms = {
                name: form_of_extras(each, kind) for name, each in updates.items() if kind in each.extras
            }
            for name in find_disagreeing(forms):
                replies[name] = Reply(name, None, f"sent {kind!r} in another form than most clients")
        for key in {key for update in updates.values() for key in update.diagnostics}:
            shown = {name: each for name, each in updates.items() if key in each.diagnostics}
            forms = {name: form_of_diagnostic(each.diagnostics[key]) for name, each in shown.items()}
            for name in find_disagreeing(forms):
                del updates[name].diagnostics[key]
        return replies

    def _tell(self, site: str, replies: Sequence[Reply], start: RoundStart) -> None:
        """Tell a site with its next message why updates of its clients were set aside."""
        for reply in replies:
            if reply.reason:
                reason = f"the update of {reply.client} was set aside: {reply.reason}"
                self.sites.tell(site, f"round {start.round}: {reason}")

    def consult(self, clients: Sequence[int], messages: Sequence[Message], *, round: int) -> list[Answer]:
        """Send the protection's messages to the clients' sites."""
        names, at_site = self._places(clients)
        of_client = dict(zip(names, messages, strict=True))
        requests = {site: SiteMessage(self._about(own, round)) for site, own in at_site.items()}
        for site, own in at_site.items():
            for name in own:
                requests[site].arrays.update(to_arrays(of_client[name], prefix=f"{name}/"))
        found = self.sites.ask("consult", requests)
        answers = {
            name: self._read_consulted(name, own, found[site], of_client[name], round)
            for site, own in at_site.items()
            for name in own
        }
        return [answers[name] for name in names]

    def _read_consulted(
        self, client: str, own: Sequence[str], answer: SiteMessage | NoAnswer, asked: Message, round: int
    ) -> Answer:
        if isinstance(answer, NoAnswer):
            return Answer(client, None, answer.reason)
        try:
            self._keep_versions(own, answer, round)
            return Answer(client, self.checks.read_answer(client, answer, asked, neighbours=own))
        except Exception as error:
            return Answer(client, None, explain_unreadable(error, "an unreadable answer"))

    def _require_enough(
        self, at_site: dict[str, list[str]], replies: dict[str, Reply], number: int, needed: int
    ) -> None:
        sound = [site for site, names in at_site.items() if any(replies[name].update for name in names)]
        if len(sound) >= needed:
            return
        reasons = "; ".join(
            f"{reply.client}: {reply.reason}" for reply in replies.values() if not reply.update
        )
        raise UnseenError(
            f"round {number}: {len(sound)} of {len(at_site)} sites sent a usable update, at least {needed} "
            f"are needed (--min-sites): {reasons}; finished rounds are kept, continue with --resume"
        )

    def evaluate(
        self, weights: Tensor, sets: Sequence[EvaluationSet], measurement: Measurement | None = None
    ) -> list[MetricAccumulator | NoAnswer]:
        """Evaluate at every site on its own samples."""
        of_site: dict[str, list[str]] = {}
        for domain, split in sets:
            of_site.setdefault(domain, []).append(split)
        arrays = to_arrays({"weights": weights})
        asked = {} if measurement is None else {"measurement": measurement.to_dict()}
        messages = {
            site: SiteMessage({"job": self.job, "splits": splits, **asked}, arrays)
            for site, splits in of_site.items()
        }
        answers = self.sites.ask("evaluate", messages)
        found: dict[EvaluationSet, MetricAccumulator | NoAnswer] = {}
        for site, splits in of_site.items():
            for split, sums in zip(
                splits, self._accumulators(site, splits, answers[site], measurement), strict=True
            ):
                found[site, split] = sums
        found = without_lone_losses(found)
        return [found[key] for key in sets]

    def _accumulators(
        self,
        site: str,
        splits: Sequence[str],
        answer: SiteMessage | NoAnswer,
        measurement: Measurement | None,
    ) -> Sequence[MetricAccumulator | NoAnswer]:
        """Read the sums of a site's evaluations."""
        if isinstance(answer, NoAnswer):
            return [answer] * len(splits)
        try:
            return read_sums(self.workspace.experiment, site, splits, answer, measurement)
        except Exception as error:
            return [NoAnswer(explain_unreadable(error, "sums that cannot be read"))] * len(splits)

    def close(self) -> None:
        """Do nothing: the sites stay connected for the next run."""


def _starts(own: Sequence[str], names: Sequence[str], start: RoundStart) -> Arrays:
    """Return what a site's own clients start from: the global weights, or one model for each of them."""
    if start.own is None:
        return to_arrays({"weights": start.weights})
    return to_arrays({name: start.of(names.index(name)).weights for name in own}, prefix="starts/")
