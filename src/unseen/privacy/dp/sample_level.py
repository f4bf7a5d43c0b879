"""Sample-level differential privacy: DP-SGD at every client, so that what it sends hides each sample.

The server need not be trusted: noise is added at the client, in every training step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from unseen.data import Batch
from unseen.errors import UnseenError, UsageError
from unseen.privacy.base import Protection, register_protection
from unseen.privacy.budget import Spending
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
from unseen.privacy.dp.spending import add_steps, admit_training, planned_steps, read_steps, steps_in_epoch
from unseen.training import ClientWork, LocalTrainingConfig, Update
from unseen.training.per_sample_grads import Loss, sum_clipped_gradients

SPENT = "rate of drawing samples and number of steps"
COUNTS = "counts of steps and samples"
NOISED = "gradients of samples clipped and noised at the client"
FOLLOWS = "follows from noised gradients"
_CLIENT, _TAKEN = "steps of ", "taken in this round"


@dataclass(frozen=True)
class DPSamplesSettings(DPSettings):
    """Settings of sample-level differential privacy."""


@register_protection
class DPSamples(Protection[DPSamplesSettings]):
    """DP-SGD (Abadi et al. 2016): Poisson batches, clipped gradients of single samples, Gaussian noise.

    What methods and optimizers do with such a gradient (momentum, proximal terms, control variates) costs no
    further privacy. Training losses and diagnostics would have no noise, so they are not sent.
    """

    name = "dp-samples"
    summary = "clipped, noised gradients of single samples at the client: updates hide every sample"
    extra = "dp"
    sends = (SPENT,)
    noised_at_client = True

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Accept methods that use samples only through their separate losses."""
        if method.topology == "pooled":
            return "it pools the data itself, so there is no client left that could add noise"
        return method.beyond_losses or None

    def check(self, run: PlannedRun) -> None:
        """Refuse batch norm, and augmentations that mix samples."""
        require_opacus()
        _require_separate_samples(run.mixing_samples)
        require_no_buffers(
            self.name,
            run.module,
            "through those of a batch every sample is in the gradient of every other",
        )

    def resolve(self, run: PlannedRun) -> Self:
        """Fill in delta, and the noise for a target epsilon at the client that spends most."""
        return type(self)(resolve_noise(self.settings, units=max(run.train_sizes), worst=_planned_steps(run)))

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """State the final epsilon and what it covers."""
        settings = self.settings
        spent = max(
            compute_epsilon([steps], noise=settings.multiplier, delta=settings.tolerated)
            for steps in _planned_steps(run)
        )
        return [
            f"{self.name}: at most epsilon {spent:.3g} at delta {settings.tolerated:.2g} for a training "
            f"sample after {run.rounds} rounds. It covers all that clients send while they train; what they "
            "send beforehand (numbers of samples and classes, table statistics) is outside it, and so are "
            "validation and test samples, whose scores leave",
            f"{self.name}: every sample needs a separate gradient, which takes two to three times as long",
            *([f"{self.name}: noise {settings.origin}"] if settings.noise_seed == "run" else []),
        ]

    def planned_epsilon(
        self, *, samples: int, plan: LocalTrainingConfig, rounds: int, delta: float
    ) -> float | None:
        """Compute epsilon of a client that participates in every round."""
        rate, number = planned_steps(samples, plan)
        return compute_epsilon([Steps(rate, rounds * number)], noise=self.settings.multiplier, delta=delta)

    # client half

    def before_training(self, work: ClientWork, context: ClientContext) -> None:
        """Configure the client to draw batches and compute gradients as in DP-SGD."""
        settings = self.settings
        _require_separate_samples(work.prepare.augmentations.mixing_samples)
        planned = planned_steps(len(work.train), work.plan)
        key = noise_key(settings.noise_seed, seed=context.seed, state=context.state, secret=context.secret)
        bound: tuple[str, ...] = ()
        if settings.noise_seed == "secret":
            spending = Spending(settings.multiplier, planned.rate, planned.number)
            bound = (admit_training(work, context, settings, spending).hex(),)
        stream = NoiseStream(key, self.name, context.client, context.round, *bound)
        training = _PrivateTraining(work, settings, stream, context.state, planned)
        work.draw, work.differentiate = training.draw, training.differentiate

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Send the state and what the accountant needs, but no losses and no sizes of drawn batches."""
        taken = context.state[_TAKEN]
        expected = round(float(taken[0] * taken[1]) * update.samples)
        extras = {**update.extras, SPENT: taken}
        return replace(update, loss=0.0, seen=expected, diagnostics={}, extras=extras)

    # server half

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Count the planned steps of every client asked, and stack what they sent; there is no loss.

        What a client says about its steps is only compared: one that says something else did not train as
        planned, so its update is left out.
        """
        planned = count_planned(context)
        kept, plain = list[int](), list[ReceivedUpdate]()
        for place, (client, update) in enumerate(received):
            if reason := _contradiction(update.extras.get(SPENT), planned[client]):
                context.fault(client, reason)
            else:
                kept.append(place)
                extras = _without(update.extras, SPENT)
                plain.append(ReceivedUpdate(client, replace(update, extras=extras)))
        if not plain:
            raise UnseenError(f"round {context.round}: no client trained as planned, see the faults recorded")
        rows = rows if len(kept) == len(received) else rows[kept]
        return replace(stack_updates(plain, rows, context.layout), loss=math.nan)

    # disclosure

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the entries: the state is noised; the rest follows from it or is independent of samples."""
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
        """Compute epsilon of the client that spent most; it is the run's, as samples are disjoint."""
        histories = {read_steps(value) for key, value in state.items() if key.startswith(_CLIENT)}
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
        """State who can learn what."""
        return (
            "Every client clipped the gradient of each training sample and added Gaussian noise before it "
            "used them: all that it sent while training hides, up to epsilon and delta, whether a sample was "
            "in its data, also from whoever runs the server. The numbers of samples and classes, told "
            "beforehand, and the scores on validation and test samples left without noise. "
            f"The noise came {self.settings.origin}."
        )


class _PrivateTraining:
    """DP-SGD of one client in one round: how it draws batches and computes gradients."""

    def __init__(
        self,
        work: ClientWork,
        settings: DPSamplesSettings,
        stream: NoiseStream,
        state: MutableMapping[str, Tensor],
        planned: Steps,
    ) -> None:
        self.work, self.settings, self.stream, self.state = work, settings, stream, state
        self.planned = planned
        self.rate, self.steps, self.expected = 0.0, 0, 1
        self._remember()

    def draw(
        self, count: int, batch_size: int, *, generator: torch.Generator, batches: int | None = None
    ) -> Iterator[Tensor]:
        """Draw batches with every sample independently at the same probability; some may be empty."""
        rate = min(batch_size / count, 1.0)
        self.expected = min(batch_size, count)
        for _ in range(steps_in_epoch(count, batch_size, batches)):
            if rate > self.planned.rate or self.steps == self.planned.number:
                raise UsageError(
                    f"this method takes more steps than the {self.planned.number} of its plan, so --protect "
                    f"{DPSamples.name} cannot account for them"
                )
            self.rate, self.steps = max(self.rate, rate), self.steps + 1
            self._remember()
            yield self.stream.sample(count, rate)

    def differentiate(self, loss: Loss, batch: Batch) -> Tensor:
        """Write (sum of clipped gradients + noise) / expected batch size to the flat gradient."""
        gradient, clip = self.work.flat.gradient, self.settings.clip
        total = sum_clipped_gradients(self.work.flat, loss, batch, bound=clip)
        noise = torch.from_numpy(self.stream.normal(len(gradient)) * (self.settings.multiplier * clip))
        gradient.add_(noise.to(gradient)).div_(self.expected)
        return total / max(len(batch.targets), 1)

    def _remember(self) -> None:
        """Save the steps so far; of several rates the largest counts for all steps."""
        self.state[_TAKEN] = torch.tensor([self.rate, self.steps], dtype=torch.float64)


def count_planned(context: ServerContext) -> dict[str, Steps]:
    """Add this round's planned steps to the history of every client asked, also of those that are silent."""
    assert context.plan is not None, "the exchange tells the plan"
    planned = {client: planned_steps(context.sizes[client], context.plan) for client in context.clients}
    for client, steps in planned.items():
        context.state[_CLIENT + client] = add_steps(context.state.get(_CLIENT + client), steps)
    return planned


def _require_separate_samples(mixing: str) -> None:
    """Refuse augmentations through which a sample is in the gradient of another."""
    if mixing:
        raise UsageError(
            f"--augment {mixing} mixes samples, so --protect {DPSamples.name} could not bound what one of "
            "them changes: leave it out"
        )


def _planned_steps(run: PlannedRun) -> list[Steps]:
    """List the steps of a client that participates in every round, for every number of samples."""
    each = [planned_steps(size, run.plan) for size in sorted(set(run.train_sizes))]
    return [Steps(rate, run.rounds * number) for rate, number in each]


def _contradiction(sent: Tensor | None, planned: Steps) -> str:
    """Explain in which way what a client says about its steps differs from the plan; "" if it does not."""
    if sent is None:
        return "did not say how many steps it took"
    if tuple(sent.shape) != (2,) or sent.dtype != torch.float64:
        return f"described its steps by {tuple(sent.shape)} numbers of {sent.dtype}, not by two of float64"
    rate, number = sent.tolist()
    if (rate, number) != (planned.rate, planned.number):
        return (
            f"says that it took {number:g} steps at rate {rate:g}, but its samples and the plan give "
            f"{planned.number} at rate {planned.rate:g}"
        )
    return ""


def _without(extras: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {key: value for key, value in extras.items() if key != kind}
