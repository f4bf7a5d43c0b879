"""The Flower engine: sends weights to sites, and receives updates and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.deploy.flower.message import SiteMessage, to_arrays, unpack_weights
from unseen.deploy.flower.sites import Sites
from unseen.engine.base import Answer, NoAnswer, Reply
from unseen.engine.experiment import EvaluationSet, Experiment, RoundStart, Workspace
from unseen.errors import UnseenError
from unseen.models import model_digest
from unseen.privacy import Message
from unseen.runs.checkpoint import StateStore, protection_key
from unseen.runs.records import Record
from unseen.tasks.accumulators import MetricAccumulator
from unseen.training import Update


class FlowerEngine:
    """Trains and evaluates at sites; its own experiment has their sample counts but no samples.

    states     only the current version of every client's state; the state itself is at the sites
    job        information from which sites build the experiment themselves
    beforehand what the sites disclosed about their data
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
        beforehand: Sequence[Record],
        min_sites: int,
    ) -> None:
        self.workspace, self.beforehand = Workspace(experiment), beforehand
        self.states, self.sites, self.min_sites = states, sites, min_sites
        self.layout = self.workspace.flat.layout
        self.job = {**job, "layout": model_digest(self.workspace.module)}

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the report: where the data is."""
        return ("the data stayed at the sites: images or points of the held-out domain cannot be shown",)

    def train(self, clients: Sequence[int], start: RoundStart) -> tuple[Tensor, list[Reply]]:
        """Train the clients of all sites at the same time."""
        names, at_site = self._places(clients)
        needed = min(self.min_sites, len(at_site))
        self.sites.wait_for(at_site, at_least=needed)
        arrays = (
            to_arrays({"weights": start.weights})
            | to_arrays(start.received, prefix="received/")
            | to_arrays(start.sealing, prefix="sealing/")
        )
        reaction = {} if start.reaction == 1 else {"reaction": start.reaction}
        messages = {
            site: SiteMessage(self._about(own, start.round) | reaction, arrays)
            for site, own in at_site.items()
        }
        answers = self.sites.ask("train", messages)
        replies = {
            name: self._reply(name, site, answers[site], start)
            for site, own in at_site.items()
            for name in own
        }
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

    def _reply(self, client: str, site: str, answer: SiteMessage | NoAnswer, start: RoundStart) -> Reply:
        if isinstance(answer, NoAnswer):
            return Reply(client, None, answer.reason)
        try:
            update = self._update(client, answer)
            self.states.versions.update(answer.header["versions"])
            reason = self.workspace.reason_against(update)
        except (UnseenError, KeyError, ValueError, TypeError) as error:
            reason = (
                str(error) if isinstance(error, UnseenError) else f"sent an unreadable update ({error!r})"
            )
        if reason:
            self.sites.tell(site, f"round {start.round}: the update of {client} was set aside: {reason}")
            return Reply(client, None, reason)
        start.progress(update.seen)
        return Reply(client, update)

    def _update(self, client: str, answer: SiteMessage) -> Update:
        """Read one client's update from a site's answer."""
        if answer.header.get("layout") != self.layout.digest:
            raise UnseenError(
                f"has another model (layout {answer.header.get('layout')}, here {self.layout.digest}); "
                "run the same version of Unseen everywhere"
            )
        weights = unpack_weights(answer.arrays[f"{client}/weights"], self.workspace.experiment.update_dtype)
        extras = answer.below(f"{client}/extras/")
        values = answer.header["clients"][client]
        numbers = {
            key: values[key] for key in ("samples", "steps", "seen", "loss", "diagnostics", "withheld")
        }
        return Update(weights=weights, extras=extras, **numbers)

    def consult(self, clients: Sequence[int], messages: Sequence[Message], *, round: int) -> list[Answer]:
        """Send the protection's messages to the clients' sites."""
        names, at_site = self._places(clients)
        of_client = dict(zip(names, messages, strict=True))
        requests = {site: SiteMessage(self._about(own, round)) for site, own in at_site.items()}
        for site, own in at_site.items():
            for name in own:
                requests[site].arrays.update(to_arrays(of_client[name], prefix=f"{name}/"))
        found = self.sites.ask("consult", requests)
        answers = {name: self._consulted(name, found[site]) for site, own in at_site.items() for name in own}
        return [answers[name] for name in names]

    def _consulted(self, client: str, answer: SiteMessage | NoAnswer) -> Answer:
        if isinstance(answer, NoAnswer):
            return Answer(client, None, answer.reason)
        self.states.versions.update(answer.header["versions"])
        if client in answer.header["refusals"]:
            return Answer(client, None, str(answer.header["refusals"][client]))
        return Answer(client, answer.below(f"{client}/"))

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

    def evaluate(self, weights: Tensor, sets: Sequence[EvaluationSet]) -> list[MetricAccumulator | NoAnswer]:
        """Evaluate at every site on its own samples."""
        of_site: dict[str, list[str]] = {}
        for domain, split in sets:
            of_site.setdefault(domain, []).append(split)
        arrays = to_arrays({"weights": weights})
        messages = {
            site: SiteMessage({"job": self.job, "splits": splits}, arrays) for site, splits in of_site.items()
        }
        answers = self.sites.ask("evaluate", messages)
        found: dict[EvaluationSet, MetricAccumulator | NoAnswer] = {}
        for site, splits in of_site.items():
            for split, sums in zip(splits, self._accumulators(answers[site], len(splits)), strict=True):
                found[site, split] = sums
        return [found[key] for key in sets]

    def _accumulators(
        self, answer: SiteMessage | NoAnswer, count: int
    ) -> Sequence[MetricAccumulator | NoAnswer]:
        """Read the sums of `count` evaluations."""
        if isinstance(answer, NoAnswer):
            return [answer] * count
        experiment = self.workspace.experiment
        data, found = experiment.data, list[dict[str, Any]]({} for _ in range(count))
        try:
            for key, array in answer.arrays.items():
                number, _, name = key.partition("/")
                found[int(number)][name] = array
            return [
                data.task_type.make_accumulator(
                    data.outputs, target_scale=experiment.target_scale
                ).from_arrays(arrays)
                for arrays in found
            ]
        except (UnseenError, KeyError, IndexError, ValueError, TypeError) as error:
            return [NoAnswer(f"sent sums that cannot be read ({error})")] * count

    def close(self) -> None:
        """Do nothing: the sites stay connected for the next run."""
