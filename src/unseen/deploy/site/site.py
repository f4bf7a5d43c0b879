"""A site's side of a job: summarize its data, train its clients, evaluate; all of it where the data is."""

from __future__ import annotations

import hashlib
import logging
import traceback
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib import parse

import torch

from unseen.calibration import Measurement
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.data.site_data import SiteSamples
from unseen.data.sources import DataRequest, load_site, resolve_data_root
from unseen.data.tables.site_table import SiteTableError, without_small_levels
from unseen.deploy.flower.message import SiteMessage, pack_weights, to_arrays, to_tensor
from unseen.deploy.identity.peer_keys import SiteIdentity
from unseen.deploy.job import Job
from unseen.deploy.judge_job import is_judging
from unseen.deploy.safe_names import require_safe_name
from unseen.deploy.site.approvals import Approvals
from unseen.deploy.site.privacy_budget import SiteBudget, require_noise_at_client
from unseen.deploy.site.site_judge import answer_judging
from unseen.deploy.site.site_policy import PolicyRefusalError, SitePolicy, read_policy
from unseen.deploy.site.sums_journal import SumsJournal
from unseen.deploy.site_summary import SiteSummary, count_splits
from unseen.deploy.tables.column_sums import make_sums_experiment
from unseen.deploy.tables.table_job import apply_encoding
from unseen.devices import choose_device
from unseen.engine import Experiment, RoundStart, Workspace
from unseen.engine.experiment import EvaluationSet
from unseen.engine.resources import keep_freed_memory
from unseen.errors import UnseenError, UsageError
from unseen.federation import site_federation
from unseen.methods import make_method
from unseen.models import model_digest
from unseen.models.weight_sources import require_same_weights
from unseen.printable import printable, quote
from unseen.privacy import make_protection
from unseen.privacy.answer_journal import AnswerJournal, FileJournal, own_secret
from unseen.privacy.disclosure import DETAILS, FEATURE_MOMENTS
from unseen.runner.experiment_setup import make_experiment
from unseen.runner.prepare import data_request, partition_config, split_fractions
from unseen.runner.start_record import TABLE_SUMS
from unseen.runs.checkpoint import StateStore, protection_key
from unseen.runs.records import plain
from unseen.training import Update, check_precision, reason_to_reject

log = logging.getLogger("unseen.site")


@dataclass(frozen=True)
class Site:
    """A site: its name, its data, and the home folder with its client state."""

    name: str
    data: str
    home: Path

    @property
    def key(self) -> Path | None:
        """The site's private key; None without one, as on a line without TLS."""
        path = self.home / f"{self.name}.key"
        return path if path.exists() else None

    def journal(self, job: Job) -> AnswerJournal:
        """Return the journal of what this site has answered in a run; that of column sums spans all runs."""
        if job.columns:
            return SumsJournal(self.home / "answered")
        return FileJournal(self.home / "answered" / f"{parse.quote(job.run_id, safe='')}.jsonl")

    def check_job(self, policy: SitePolicy, config: RunConfig) -> None:
        """Refuse a job that the policy or the privacy budget does not allow."""
        policy.check_job(config)
        if self.name not in (*config.hold_out, *config.validate_on):
            protection = make_protection(config.protect, config.protect_settings)
            require_noise_at_client(policy.privacy, protection)

    def secret(self, job: Job) -> bytes:
        """Return the site's secret key for a run."""
        own = own_secret(self.home / "answered" / "secret.key")
        return hashlib.sha256(own + job.run_id.encode()).digest()

    def policy(self) -> SitePolicy:
        """Read the site's policy as it is now; what is wrong with it stays in the site's log."""
        try:
            return read_policy(self.home)
        except UnseenError as error:
            log.error("%s", error)
            raise UnseenError("its policy cannot be used; the reason is in the site's own log") from error

    def warn(self, text: str) -> None:
        """Say something in the site's log."""
        log.warning("%s", text)

    def samples(self, config: RunConfig, *, min_group: int = 1) -> SiteSamples:
        """Load the samples as the job asks; details of unreadable files stay in the site's log.

        min_group  classes with fewer samples are left out, and texts in fewer rows of a table
        """
        request = replace(data_request(replace(config, data_root=None)), source=self.data)
        return self.load(request, min_group=min_group, config=config)

    def load(self, request: DataRequest, *, min_group: int, config: RunConfig | None = None) -> SiteSamples:
        """Load the samples of a request, without small classes.

        config  of a training job, which learns the texts of a table and may depend on groups: small texts
                count as missing, and groups are part of the fingerprint
        """
        try:
            samples = load_site(self.name, request).without_small_classes(min_group)
            if config is not None:
                samples = without_small_levels(samples, min_group)
            if config is not None and config.split == "group":
                samples = samples.with_groups_identified()
        except SiteTableError:
            raise
        except UnseenError as error:
            log.error("%s", error)
            raise UnseenError("its data cannot be used; the reason is in the site's own log") from error
        for note in samples.notes:
            log.info("%s", note)
        return samples

    def answer(self, request: SiteMessage) -> SiteMessage:
        """Answer a request; any error becomes an answer that reports it."""
        try:
            if notice := request.header.get("notice"):
                log.warning("the coordinator says: %s", printable(notice))
            return self._answer(request)
        except UnseenError as error:
            log.error("%s", printable(str(error)))
            return SiteMessage({"site": self.name, "error": printable(str(error))})
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            # The message may quote what the coordinator sent: the log gets it on one line.
            calls = "".join(traceback.format_tb(error.__traceback__))
            log.error("request failed: %s\n%s", printable(said), calls)
            return SiteMessage({"site": self.name, "error": printable(said.replace(self.data, "DATA"))})

    def _answer(self, request: SiteMessage) -> SiteMessage:
        what, policy = request.header["ask"], self.policy()
        if is_judging(request.header):
            return answer_judging(self, policy, request)
        if what == "census":
            config = RunConfig.from_mapping(request.header["config"])
            self.check_job(policy, config)
            samples = self.samples(config, min_group=policy.min_group)
            trains = self.name not in (*config.hold_out, *config.validate_on)
            splits = count_splits(samples, split_fractions(config), seed=config.seed) if trains else None
            summary = SiteSummary.of(samples, splits).to_dict()
            return SiteMessage({"site": self.name, **summary, "confirms": policy.confirm})
        job, layout = Job.from_dict(request.header["job"]), str(request.header["job"]["layout"])
        self.check_job(policy, job.config)
        if policy.confirm:
            Approvals(self.home).require(job, tell=log.warning)
            policy = self.policy()
            self.check_job(policy, job.config)
        part = SitePart(self, job, layout, policy)
        if what == "train":
            return part.train(request)
        if what == "consult":
            return part.consult(request)
        if what == "evaluate":
            return part.evaluate(request)
        raise UnseenError(f"received a request {what!r} that this version of Unseen does not know")


class SitePart:
    """A site's part of one run: its experiment, and the answers to training and evaluation requests."""

    def __init__(self, site: Site, job: Job, layout: str, policy: SitePolicy) -> None:
        self.site, self.job, self.policy = site, job, policy
        torch.set_num_threads(job.threads)
        keep_freed_memory()
        self.workspace = Workspace(
            self.experiment,
            journal=site.journal(job),
            job=hashlib.sha256(job.digest + self.experiment.original_data.fingerprint.encode()).digest(),
            secret=site.secret(job),
            budget=SiteBudget(
                site.home, job.run_id, job.digest, policy.privacy.epsilon, policy.privacy.delta
            ),
            identity=SiteIdentity.find(site.home, site.name, job.run_id),
        )
        own = model_digest(self.workspace.module)
        if own != layout:
            raise UnseenError(
                f"builds another model than the coordinator (layout {own}, there {layout}); "
                "run the same version of Unseen with the same --weights everywhere"
            )

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment, with this site's samples only."""
        job, config = self.job, self.job.config
        if self.site.name not in job.domains:
            raise UsageError(f"site {self.site.name!r} has no part in this run of {', '.join(job.domains)}")
        samples = self.site.samples(config, min_group=self.policy.min_group)
        data = samples.as_data_set(name=job.name, domains=job.domains, classes=job.classes)
        data = data.as_task(config.task)
        federation = site_federation(
            data,
            site=self.site.name,
            sources=job.sources,
            held_out=config.hold_out,
            validate_on=config.validate_on,
            partition=partition_config(config),
            fractions=split_fractions(config),
            seed=config.seed,
        )
        protection = make_protection(config.protect, config.protect_settings)
        if job.columns:
            self.policy.check_kinds([TABLE_SUMS])
            return make_sums_experiment(
                data,
                federation,
                protection,
                columns=job.columns,
                seed=config.seed,
                min_group=self.policy.min_group,
            )
        data, target = apply_encoding(data, job.encoding)
        check_precision(config.precision, choose_device(config.device))
        method = make_method(config.method, config.settings, weighting=config.weighting)
        experiment, notes = make_experiment(
            config,
            data,
            federation,
            method=method,
            protection=protection,
            weights=self._weights(data),
            target=target,
        )
        for note in notes:
            log.info("%s", note)
        return experiment

    def _weights(self, data: DataSet) -> Path | None:
        """Find the pretrained weights that the job does not send; None if it sends the whole network."""
        job = self.job
        if not job.weights:
            return None
        return require_same_weights(
            require_safe_name(job.config.weights or "", "a file of weights"),
            job.config.model or "",
            resolve_data_root(None),
            channels=data.input_shape[0],
            fingerprint=job.weights,
        )

    def train(self, request: SiteMessage) -> SiteMessage:
        """Train the named clients from the received weights, or each from those received for it."""
        experiment, states = self.experiment, self._states(request)
        positions = {name: experiment.federation.position(name) for name in request.header["clients"]}
        for position in positions.values():
            self._check_size(position)
        own_starts = request.below("starts/")
        start = RoundStart(
            self._round(request),
            torch.empty(0) if own_starts else to_tensor(request.arrays["weights"]),
            request.below("received/"),
            sealing=request.below("sealing/"),
            reaction=request.header.get("reaction", 1.0),
        )
        reply = SiteMessage(
            {"site": self.site.name, "layout": self.workspace.flat.layout.digest, "clients": {}}
        )
        for name, position in positions.items():
            with states.open_states(name, round=start.round, protected=experiment.protected) as own:
                begun = replace(start, weights=own_starts[name]) if own_starts else start
                update = self.workspace.train_client(position, own[0], begun, own[1])
            self._warn_of(update, name, start.round)
            reply.header["clients"][name] = _numbers(update)
            reply.arrays[f"{name}/weights"] = pack_weights(update.weights, experiment.update_dtype)
            reply.arrays.update(to_arrays(update.extras, prefix=f"{name}/extras/"))
        reply.header["versions"] = states.versions
        return reply

    def _check_size(self, position: int) -> None:
        """Refuse an update that would rest on too few samples or on too little noise."""
        experiment, config = self.experiment, self.job.config
        samples, plan = len(experiment.federation[position].train), experiment.plan
        drawn = samples if plan.batches_per_epoch is None else plan.batches_per_epoch * plan.batch_size
        self.policy.check_training(samples=samples, seen=min(samples, drawn * plan.epochs))
        self.policy.check_noise(experiment.protection, plan, samples=samples, rounds=config.rounds)

    def _round(self, request: SiteMessage) -> int:
        """Read the number of the round, which names files; 0 is the exchange before the first."""
        round = request.header["round"]
        if type(round) is not int or not 0 <= round <= self.job.config.rounds:
            raise UnseenError(
                f"was asked for round {quote(round)} of a job of {self.job.config.rounds} rounds"
            )
        return round

    def _warn_of(self, update: Update, client: str, round: int) -> None:
        reason = update.withheld
        if not reason and not self.experiment.protection.seals:
            reason = reason_to_reject(update, self.workspace.flat.layout.size) or ""
        if reason:
            log.warning("round %s: the update of %s will be set aside: %s", round, client, reason)

    def consult(self, request: SiteMessage) -> SiteMessage:
        """Collect clients' answers to the protection's messages; a refusal is an answer too."""
        states, round = self._states(request), self._round(request)
        reply = SiteMessage({"site": self.site.name, "refusals": {}})
        for name in request.header["clients"]:
            asked = request.below(f"{name}/")
            do = partial(self.workspace.answer, name, message=asked, round=round)
            try:
                answer = states.with_state(protection_key(name), round=round, do=do)
            except UnseenError as error:
                reply.header["refusals"][name] = printable(str(error))
            else:
                reply.arrays.update(to_arrays(answer, prefix=f"{name}/"))
        reply.header["versions"] = states.versions
        return reply

    def _states(self, request: SiteMessage) -> StateStore:
        """Open the client state of this run at the versions that the request names.

        A version from an earlier round is in a checkpoint already, so older ones are deleted.
        """
        round, versions = self._round(request), request.header["versions"]
        if any(type(version) is not int or version < 0 for version in versions.values()):
            raise UnseenError(f"was asked for versions {quote(versions)} of client state; expected rounds")
        store = StateStore(self.site.home / "memory" / self.job.run_id, versions)
        for key, version in store.versions.items():
            if not store.path(key, version).exists():
                raise UnseenError(
                    f"the state of client {key} from round {version} is missing in {store.folder}; "
                    "restore it, or start a new run"
                )
            if version < round:
                store.forget_old_of(key)
        return store

    def evaluate(self, request: SiteMessage) -> SiteMessage:
        """Evaluate the deployed network on the named splits."""
        splits = [str(split) for split in request.header["splits"]]
        self.policy.check_evaluation(dict.fromkeys(splits, 0))
        sets: list[EvaluationSet] = [(self.site.name, split) for split in splits]
        self.policy.check_evaluation(
            {split: len(self.experiment.evaluation_indices(site, split)) for site, split in sets}
        )
        self.workspace.flat.load(to_tensor(request.arrays["weights"]))
        measurement = self._measurement(request)
        sums = {
            f"{number}/{name}": array
            for number, accumulator in enumerate(self.workspace.evaluate_all(sets, measurement))
            for name, array in accumulator.to_arrays().items()
        }
        return SiteMessage({}, sums)

    def _measurement(self, request: SiteMessage) -> Measurement | None:
        """Read what to sum beyond the plain metrics; nothing where the policy's `values` lack it."""
        if "measurement" not in request.header:
            return None
        try:
            asked = request.header["measurement"]
            features = isinstance(asked, dict) and "features" in asked
            self.policy.check_kinds([FEATURE_MOMENTS if features else DETAILS])
        except PolicyRefusalError as error:
            log.info("only plain metrics are sent: %s", error)
            return None
        if features and not self.experiment.protection.shows_clients:
            raise UnseenError("was asked for sums of features, which the run's protection does not allow")
        return Measurement.from_dict(
            asked,
            outputs=self.experiment.data.outputs,
            features=self.workspace.deployed.shown_features,
        )


def _numbers(update: Update) -> dict[str, Any]:
    return {
        "samples": update.samples,
        "steps": update.steps,
        "seen": update.seen,
        "loss": update.loss,
        "diagnostics": plain(update.diagnostics),
        "withheld": update.withheld,
    }
