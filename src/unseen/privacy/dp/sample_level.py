"""Differential privacy for samples: DP-SGD at every client, so that what leaves it hides each of its samples.

The server need not be trusted: noise is added where the data lies, in every step of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from unseen.data import Batch
from unseen.privacy.base import Protection, register_protection
from unseen.privacy.context import (
    SAMPLES,
    ClientContext,
    MethodTraits,
    PlannedRun,
    ReceivedUpdate,
    RoundUpdates,
    ServerContext,
    stack_updates,
)
from unseen.privacy.disclosure import DisclosureEntry
from unseen.privacy.dp.accountant import Steps, compute_epsilon, require_opacus
from unseen.privacy.dp.dp_settings import DPSettings, privacy_record, require_no_buffers, resolve_noise
from unseen.privacy.dp.noise import NoiseStream, noise_key
from unseen.training import ClientWork, Update
from unseen.training.per_sample_grads import Loss, sum_clipped_gradients

SPENT = "rate of drawing samples and number of steps"
COUNTS = "counts of steps and samples"
NOISED = "gradients of samples clipped and noised at the client"
FOLLOWS = "follows from noised gradients"
_CLIENT, _LAST, _TAKEN = "steps of ", "last round's ", "taken in this round"


@dataclass(frozen=True)
class DPSamplesSettings(DPSettings):
    """Settings of differential privacy for samples."""


@register_protection
class DPSamples(Protection[DPSamplesSettings]):
    """DP-SGD (Abadi et al. 2016): Poisson batches, clipped gradients of single samples, Gaussian noise.

    What methods and optimisers do with such a gradient (momentum, proximal terms, control variates) costs
    nothing more. Training losses and diagnostics would leave without noise, and so they stay at the client.
    """

    name = "dp-samples"
    summary = "clipped, noised gradients of single samples at the client: updates hide every sample"
    extra = "dp"
    sends = (SPENT,)

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Serve methods that use samples only by the loss that each has alone."""
        if method.topology == "pooled":
            return "it pools the data itself, so there is no client left that could add noise"
        return method.beyond_losses or None

    def check(self, run: PlannedRun) -> None:
        """Refuse batch norm."""
        require_opacus()
        require_no_buffers(
            self.name,
            run.module,
            "through those of a batch every sample is in the gradient of every other",
        )

    def resolve(self, run: PlannedRun) -> Self:
        """Find delta, and the noise for a target epsilon at the client where it costs most."""
        return type(self)(resolve_noise(self.settings, units=max(run.train_sizes), worst=_planned_steps(run)))

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """What epsilon comes to, and what it covers."""
        settings = self.settings
        spent = max(
            compute_epsilon([steps], noise=settings.multiplier, delta=settings.tolerated)
            for steps in _planned_steps(run)
        )
        return [
            f"{self.name}: at most epsilon {spent:.3g} at delta {settings.tolerated:.2g} for a training "
            f"sample after {run.rounds} rounds. It covers all that clients send while they train; what they "
            "tell beforehand (numbers of samples and classes, table statistics) is outside it, and so are "
            "validation and test samples, whose scores leave",
            f"{self.name}: every sample has a gradient of its own, which costs two to three times the time",
            *([f"{self.name}: noise {settings.origin}"] if settings.noise_seed == "run" else []),
        ]

    # the client's half

    def before_training(self, work: ClientWork, side: ClientContext) -> None:
        """Let the client draw batches and find gradients as DP-SGD does."""
        key = noise_key(self.settings.noise_seed, seed=side.seed, memory=side.memory)
        stream = NoiseStream(key, self.name, side.client, side.round)
        training = _PrivateTraining(work, self.settings, stream, side.memory)
        work.draw, work.differentiate = training.draw, training.differentiate

    def seal(self, update: Update, side: ClientContext) -> Update:
        """Send the state and what the accountant needs; losses and the sizes of drawn batches stay here."""
        taken = side.memory[_TAKEN]
        expected = round(float(taken[0] * taken[1]) * update.samples)
        extras = {**update.extras, SPENT: taken}
        return replace(update, loss=0.0, seen=expected, diagnostics={}, extras=extras)

    # the server's half

    def finish(self, side: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor) -> RoundUpdates:
        """Count each client's steps, and hand on what it sent; nobody told a loss."""
        sent = {client: update.extras[SPENT] for client, update in received}
        for client in side.clients:
            _count(side.state, _CLIENT + client, sent.get(client))
        plain = [
            ReceivedUpdate(client, replace(update, extras=_without(update.extras, SPENT)))
            for client, update in received
        ]
        return replace(stack_updates(plain, rows, side.layout), loss=math.nan)

    # the record

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """The state is noised; the rest is made of it or says nothing of a sample."""
        weights = update.weights
        return [
            DisclosureEntry(", ".join(method.in_state), weights.numel(), weights.nbytes, NOISED),
            DisclosureEntry(SAMPLES, 1, 8),
            DisclosureEntry(COUNTS, 2, 16, "as planned, not as drawn"),
            *(
                DisclosureEntry(kind, value.numel(), value.nbytes, "as planned" if kind == SPENT else FOLLOWS)
                for kind, value in update.extras.items()
            ),
        ]

    def privacy_spent(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Epsilon of the client that has spent most; their samples are different ones, so nothing adds up."""
        histories = {
            tuple(Steps(rate, int(number)) for rate, number in value.tolist())
            for key, value in state.items()
            if key.startswith(_CLIENT)
        }
        if not histories:
            return {}
        settings = self.settings
        noise, delta = settings.multiplier, settings.tolerated
        by_epsilon = {compute_epsilon(steps, noise=noise, delta=delta): steps for steps in histories}
        epsilon = max(by_epsilon)
        worst = by_epsilon[epsilon]
        return privacy_record(
            settings,
            unit="sample",
            epsilon=epsilon,
            clip=settings.clip,
            sampling_rate=max(steps.rate for steps in worst),
            steps=sum(steps.number for steps in worst),
        )

    def statement(self) -> str:
        """Who can learn what."""
        return (
            "Every client clipped the gradient of each training sample and added Gaussian noise before it "
            "used them: all that it sent while training hides, up to epsilon and delta, whether a sample was "
            "in its data, also from whoever runs the server. The numbers of samples and classes, told "
            "beforehand, and the scores on validation and test samples left without noise. "
            f"The noise came {self.settings.origin}."
        )


class _PrivateTraining:
    """How one client draws batches and finds gradients in one round."""

    def __init__(
        self,
        work: ClientWork,
        settings: DPSamplesSettings,
        stream: NoiseStream,
        memory: MutableMapping[str, Tensor],
    ) -> None:
        self.work, self.settings, self.stream, self.memory = work, settings, stream, memory
        self.rate, self.steps, self.expected = 0.0, 0, 1
        self._remember()

    def draw(
        self, count: int, batch_size: int, *, generator: torch.Generator, batches: int | None = None
    ) -> Iterator[Tensor]:
        """Draw batches in which every sample is on its own with the same chance; some may be empty."""
        rate = min(batch_size / count, 1.0)
        self.expected = min(batch_size, count)
        for _ in range(steps_in_epoch(count, batch_size, batches)):
            self.rate, self.steps = max(self.rate, rate), self.steps + 1
            self._remember()
            yield self.stream.chosen(count, rate)

    def differentiate(self, loss: Loss, batch: Batch) -> Tensor:
        """Put (sum of clipped gradients + noise) / expected size of a batch into the flat gradient."""
        gradient, clip = self.work.flat.gradient, self.settings.clip
        with self.work.prepare.autocast():
            total = sum_clipped_gradients(self.work.flat, loss, batch, bound=clip)
        noise = torch.from_numpy(self.stream.normal(len(gradient)) * (self.settings.multiplier * clip))
        gradient.add_(noise.to(gradient)).div_(self.expected)
        return total / max(len(batch.targets), 1)

    def _remember(self) -> None:
        """Note what was taken so far; of several rates the largest counts for all steps."""
        self.memory[_TAKEN] = torch.tensor([self.rate, self.steps], dtype=torch.float64)


def steps_in_epoch(count: int, batch_size: int, batches: int | None) -> int:
    """As many steps as batches in order would be."""
    return batches or -(-count // batch_size)


def _planned_steps(run: PlannedRun) -> list[Steps]:
    """The steps of a client that takes part in every round, for every number of samples there is."""
    plan = run.plan
    return [
        Steps(
            min(plan.batch_size / size, 1.0),
            run.rounds * plan.epochs * steps_in_epoch(size, plan.batch_size, plan.batches_per_epoch),
        )
        for size in sorted(set(run.train_sizes))
    ]


def _count(state: MutableMapping[str, Tensor], key: str, taken: Tensor | None) -> None:
    """Add a round's (rate, steps) to a client's; one that was asked and is not heard counts as before."""
    known = state.get(key)
    if taken is None:
        taken = state.get(_LAST + key)
    if taken is None:
        return
    state[_LAST + key] = taken
    if known is not None and float(known[-1, 0]) == float(taken[0]):
        known = known.clone()
        known[-1, 1] += taken[1]
    else:
        known = taken[None] if known is None else torch.cat([known, taken[None]])
    state[key] = known.clone()


def _without(extras: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {key: value for key, value in extras.items() if key != kind}
