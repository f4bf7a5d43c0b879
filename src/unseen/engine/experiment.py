"""The experiment of a run, and the work of one client in it: the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from unseen.aggregation import ServerWork, average_products
from unseen.calibration import Measurement
from unseen.data import DataSet, Indices, Samples
from unseen.errors import UsageError
from unseen.evaluation.evaluate import EVALUATION_BATCH, GroupedAccumulator, WithFeatures, evaluate
from unseen.evaluation.selection import VALIDATION_DOMAIN
from unseen.federation import Federation, Split
from unseen.methods import Method
from unseen.methods.closed_form import START_ROUND, StartingHead
from unseen.models import (
    BatchNormChoice,
    FlatState,
    Kind,
    Network,
    make_statistics_rule,
    set_precision,
)
from unseen.models.lora import plain_state
from unseen.privacy import (
    ClientContext,
    Message,
    Protection,
    answer_message,
    make_protection,
    require_declared,
    seal_update,
)
from unseen.privacy.answer_journal import AnswerJournal, MemoryJournal
from unseen.privacy.budget import PrivacyBudget, UnlimitedBudget
from unseen.privacy.context import RoundIdentity
from unseen.seeding import global_torch_seed
from unseen.tasks.accumulators import MetricAccumulator
from unseen.tasks.detail_accumulators import make_measured
from unseen.training import (
    ClientWork,
    LocalTrainingConfig,
    Preprocessor,
    Update,
    augmented_inside,
    reason_to_reject,
)

EvaluationSet = tuple[str, str]
"""(domain, split) with split one of validation, validation-domain, test, target."""


class EvaluationPart(NamedTuple):
    """Some samples of an evaluation set, cut at fixed positions, so that sums do not depend on the engine.

    start, size  position of the first sample in the set, and how many there are
    """

    domain: str
    split: str
    start: int
    size: int


PART = 4 * EVALUATION_BATCH
UPDATE_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Types to which a client's state may be rounded for sending: 16 bits halve the bytes and cost precision.

Every engine rounds in the same way, even if nothing is sent, so that results agree. Batch counters and values
beyond 65504 do not survive float16; bfloat16 keeps the range and only 8 bits of precision.
"""


@dataclass(frozen=True)
class Experiment:
    """Data, its clients, the method, the initial network, and the training configuration.

    target_mean, target_scale  convert standardized regression targets back to their unit
    compile                    compile the module that clients train with torch.compile
    protection                 protection of updates before they leave a client
    update_dtype               type to which clients' states are rounded before they are sent
    average_products           whether products of LoRA's factors are averaged, not the factors
    batch_norm                 how running statistics are merged; the network's layers are frozen already
    whole                      the whole network where `network` is only its trained part
    images                     the images whose cached features `data` holds, if it does
    head                       what sets the head in an exchange before the first round; None = nothing
    """

    data: DataSet
    federation: Federation
    method: Method[Any]
    network: Network
    plan: LocalTrainingConfig
    prepare: Preprocessor
    seed: int
    target_mean: float = 0.0
    target_scale: float = 1.0
    compile: bool = False
    protection: Protection[Any] = field(default_factory=lambda: make_protection("none"))
    update_dtype: str = "float32"
    average_products: bool = False
    batch_norm: BatchNormChoice = "train"
    whole: Network | None = None
    images: DataSet | None = None
    head: StartingHead | None = None

    @property
    def original_data(self) -> DataSet:
        """The data as it was loaded: images, where clients train on cached features of them."""
        return self.images or self.data

    @property
    def protected(self) -> bool:
        """Whether updates are protected at all."""
        return self.protection.name != "none"

    def aggregate(self, work: ServerWork) -> Tensor:
        """Merge a round's updates by the method's server half, and average LoRA's products if requested."""
        merged = self.halves_in(work.round).server(work)
        if self.average_products and work.round != START_ROUND:
            return average_products(merged, work.updates, self.method.weighting)
        return merged

    def halves_in(self, round: int) -> Method[Any] | StartingHead:
        """Return what clients and server run in a round: the method, or the head's start before the first."""
        return self.head if round == START_ROUND and self.head is not None else self.method

    def samples_in_round(self, fraction: float) -> int:
        """Estimate how many samples a round trains on, counting repetitions."""
        sizes, plan = self.federation.train_sizes, self.plan
        if plan.batches_per_epoch is None:
            each_epoch = int(sizes.sum())
        else:
            each_epoch = len(sizes) * plan.batches_per_epoch * plan.batch_size
        return int(each_epoch * plan.epochs * fraction)

    def evaluation_indices(self, domain: str, split: str) -> Indices:
        """Return the samples of an evaluation set; only this method accesses the held-out domains."""
        if split == "target":
            return self.federation.target_indices(domain)
        if split == VALIDATION_DOMAIN:
            return self.federation.validation_indices(domain)
        return self.federation.split_indices(Split[split.upper()], domain)

    def evaluation_sets(self, *splits: str) -> list[EvaluationSet]:
        """List all non-empty (domain, split) pairs of the given splits."""
        outside = {"target": self.federation.held_out, VALIDATION_DOMAIN: self.federation.validate_on}
        return [
            (domain, split)
            for split in splits
            for domain in outside.get(split, self.federation.sources)
            if len(self.evaluation_indices(domain, split))
        ]

    def evaluation_parts(self, sets: Sequence[EvaluationSet]) -> list[EvaluationPart]:
        """Cut evaluation sets into parts."""
        sizes = [len(self.evaluation_indices(*key)) for key in sets]
        return [
            EvaluationPart(domain, split, start, min(PART, size - start))
            for (domain, split), size in zip(sets, sizes, strict=True)
            for start in range(0, size, PART)
        ]


def merge_parts(
    sets: Sequence[EvaluationSet], sums: Iterable[tuple[EvaluationPart, MetricAccumulator]]
) -> list[MetricAccumulator]:
    """Add up the sums of each set's parts, which come in the order of `evaluation_parts`."""
    merged: dict[EvaluationSet, MetricAccumulator] = {}
    for part, found in sums:
        key = part.domain, part.split
        if key in merged:
            merged[key].merge(found)
        else:
            merged[key] = found
    return [merged[key] for key in sets]


def _unheard(samples: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class RoundStart:
    """Input of every client of a round.

    weights   the global state to start from
    own       (clients x state) what each client starts from in its place; None = all from `weights`
    received  further tensors that the server sent
    progress  called with the number of samples after every batch
    sealing   what the server's half of the protection sent
    reaction  factor of the learning rate with which the schedule reacts to evaluations
    """

    round: int
    weights: Tensor
    received: Mapping[str, Tensor] = field(default_factory=dict)
    progress: Callable[[int], None] = _unheard
    sealing: Mapping[str, Tensor] = field(default_factory=dict)
    reaction: float = 1.0
    own: Tensor | None = None

    def of(self, row: int) -> RoundStart:
        """Return the input of one client, by its row."""
        return self if self.own is None else replace(self, weights=self.own[row], own=None)


class Workspace:
    """One process's copy of the shared module, reused in place by every client and evaluation."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        journal: AnswerJournal | None = None,
        job: bytes = b"",
        secret: bytes = b"",
        budget: PrivacyBudget | None = None,
        identity: RoundIdentity | None = None,
    ) -> None:
        """Build the shared module.

        journal, job, secret, budget, identity  as in `ClientContext`
        """
        self.experiment = experiment
        self.journal, self.job, self.secret = journal or MemoryJournal(), job, secret
        self.budget, self.identity = budget or UnlimitedBudget(), identity
        device = experiment.prepare.device
        module = experiment.method.build_for(
            experiment.network, sources=experiment.federation.sources, seed=experiment.seed
        )
        self.module: nn.Module = module.to(device)
        set_precision(self.module, experiment.prepare.precision)
        self.flat = FlatState(self.module)
        self.statistics = make_statistics_rule(experiment.batch_norm, self.module)
        if experiment.compile:
            self.module.compile()
        self.deployed = experiment.method.deployed(self.module)
        if experiment.head is not None:
            experiment.head.bind(self.module)
        self.head = self._head_places() if experiment.plan.head_lr != 1 else ()

    def _head_places(self) -> tuple[slice, ...]:
        """Find the places of the deployed network's head in the flat parameters."""
        inside = {id(parameter) for parameter in self.deployed.head.parameters()}
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        return tuple(
            entry.slice
            for entry in self.flat.layout.entries
            if entry.kind is Kind.PARAMETER and id(parameters[entry.name]) in inside
        )

    def whole_tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """Return all named tensors of the shared module at a state, frozen ones included."""
        trained, whole = plain_state(self.module, weights), self.experiment.whole
        if whole is None:
            return trained
        experiment = self.experiment
        module = experiment.method.build_for(
            whole, sources=experiment.federation.sources, seed=experiment.seed
        )
        return {**module.state_dict(), **trained}

    def train_client(
        self,
        position: int,
        state: MutableMapping[str, Tensor],
        start: RoundStart,
        protection_state: MutableMapping[str, Tensor] | None = None,
    ) -> Update:
        """Run the method's client half for one client, from the server's weights; return what is sent.

        state             the client's state for the method
        protection_state  its state for the protection
        """
        experiment = self.experiment
        client = experiment.federation[position]
        self.flat.load(start.weights)
        work = ClientWork(
            client=client.name,
            round=start.round,
            seed=experiment.seed,
            module=self.module,
            flat=self.flat,
            start=start.weights,
            train=Samples(experiment.data, client.train),
            validation=Samples(experiment.data, client.validation),
            plan=experiment.plan.in_round(max(start.round, 1), reaction=start.reaction),
            prepare=experiment.prepare,
            received=start.received,
            state=state,
            progress=start.progress,
            head=self.head,
        )
        context = self._client_context(
            client.name,
            start.round,
            protection_state,
            received=start.sealing,
            start=self.statistics.to_sent(start.weights),
        )
        experiment.protection.before_training(work, context)
        with (
            global_torch_seed(work.own_seed, "dropout", client.name, start.round),
            augmented_inside(work, self.deployed),
        ):
            update = experiment.halves_in(start.round).client(work)
        if work.plan.keep_state and not work.kept_optimizers and start.round != START_ROUND:
            raise UsageError(
                f"{experiment.method.name} does not train by the optimizer of the run, whose state "
                "--keep-optimizer-state would keep: leave it out"
            )
        require_declared(update, context.method)
        update = replace(update, weights=self.statistics.to_sent(update.weights))
        if experiment.update_dtype != "float32":
            rounded = update.weights.to(UPDATE_DTYPES[experiment.update_dtype]).to(torch.float32)
            update = replace(update, weights=rounded)
        return seal_update(experiment.protection, update, context)

    def reason_against(self, update: Update) -> str:
        """Return why a server cannot use an update, or ""; sealed updates were checked by their client."""
        if update.withheld or self.experiment.protection.seals:
            return update.withheld
        return reason_to_reject(update, self.flat.layout.size) or ""

    def answer(
        self, client: str, state: MutableMapping[str, Tensor], message: Message, round: int
    ) -> Message:
        """Compute one client's reply to a message of the protection's server half."""
        return answer_message(self.experiment.protection, message, self._client_context(client, round, state))

    def _client_context(
        self,
        client: str,
        round: int,
        state: MutableMapping[str, Tensor] | None,
        **more: Any,
    ) -> ClientContext:
        experiment = self.experiment
        return ClientContext(
            client=client,
            round=round,
            seed=experiment.seed,
            method=experiment.halves_in(round).traits,
            layout=self.flat.layout,
            state={} if state is None else state,
            journal=self.journal,
            job=self.job,
            secret=self.secret,
            budget=self.budget,
            identity=self.identity,
            **more,
        )

    def evaluate(self, part: EvaluationPart, measurement: Measurement | None = None) -> MetricAccumulator:
        """Evaluate the deployed network, with the weights it has now, on one part of an evaluation set.

        measurement  what to sum beyond the plain metrics
        """
        experiment = self.experiment
        rows = experiment.evaluation_indices(part.domain, part.split)[part.start : part.start + part.size]
        samples = Samples(experiment.data, rows)
        data = experiment.data
        make = partial(
            make_measured,
            data.task_type,
            data.outputs,
            target_scale=experiment.target_scale,
            measurement=measurement,
        )
        accumulator = make() if data.group_of is None else GroupedAccumulator(data.group_of[rows], make)
        features = measurement is not None and measurement.features > 0
        network = WithFeatures(self.deployed) if features else self.deployed
        return evaluate(network, samples, prepare=experiment.prepare, accumulator=accumulator)

    def evaluate_all(
        self, sets: Sequence[EvaluationSet], measurement: Measurement | None = None
    ) -> list[MetricAccumulator]:
        """Evaluate the deployed network on whole evaluation sets."""
        parts = self.experiment.evaluation_parts(sets)
        return merge_parts(sets, ((part, self.evaluate(part, measurement)) for part in parts))
