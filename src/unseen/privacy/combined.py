"""Combinations of protections: noise at every client, then a sum that hides single updates.

The order is fixed. A client's noise is added first, to the numbers; masks come last, because nothing can be
added to a masked number. The server opens the sum and finds it noised already: it is trusted with neither
single updates nor the noise.

Noise is added to real numbers, and each client rounds the result to the fixed-point grid of secure-sum.
Epsilon is that of the unrounded numbers: the grid (2^-24 by default) must be far finer than a client's noise,
which is checked, and what rounding could reveal beyond that is not accounted for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.models import Layout
from unseen.privacy.base import PROTECTIONS, Protection, S, register_protection
from unseen.privacy.budget import Spending
from unseen.privacy.context import (
    ClientContext,
    Message,
    MethodTraits,
    PlannedRun,
    ReceivedUpdate,
    RoundUpdates,
    ServerContext,
)
from unseen.privacy.disclosure import TRAINING_METRICS, DisclosureEntry
from unseen.privacy.dp.accountant import Steps, compute_epsilon
from unseen.privacy.dp.client_level import DPClients, DPClientsSettings, clip_to_norm
from unseen.privacy.dp.dp_settings import DPSettings, privacy_record, resolve_noise
from unseen.privacy.dp.noise import NoiseStream, noise_key
from unseen.privacy.dp.sample_level import NOISED, SPENT, DPSamples, DPSamplesSettings, count_planned
from unseen.privacy.dp.spending import BOUND, add_steps, admit_training, read_steps
from unseen.privacy.secagg.message_forms import ROSTER
from unseen.privacy.secagg.protocol import HIDDEN, SecureSum, SecureSumSettings
from unseen.privacy.serialization import tensor_to_bytes
from unseen.training import ClientWork, LocalTrainingConfig, Update

FINEST = 1024
"""Steps of the fixed-point grid that the standard deviation of a client's noise must have at least."""
_ASKED = "rounds asked of "


class SealedNoise(Protection[S]):
    """Base class of noise at the clients under secure summation; subclasses say what noise.

    Batch order, augmentation and dropout follow from the same digest as the noise: a round repeated after a
    crash gives the same update, and other input gives another order too.
    """

    extra = "privacy,dp"
    sends = SecureSum.sends
    seals = True
    sums_only = True
    noised_at_client = True
    answers_protected = SecureSum.answers_protected

    @property
    def secure(self) -> SecureSum:
        """The part that masks."""
        return SecureSum(self.settings)  # type: ignore[arg-type]

    @property
    def noise(self) -> Protection[Any]:
        """The part that adds noise."""
        raise NotImplementedError

    @property
    def parts(self) -> tuple[Protection[Any], ...]:
        """Both parts, in the order of the name."""
        return self.secure, self.noise

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Accept methods that both parts accept."""
        return next((reason for part in self.parts if (reason := part.incompatibility(method))), None)

    def check(self, run: PlannedRun) -> None:
        """Refuse what either part refuses."""
        for part in self.parts:
            part.check(run)

    def answer(self, message: Message, context: ClientContext) -> Message:
        """Answer as secure summation does."""
        return self.secure.answer(message, context)

    def begin(self, context: ServerContext) -> Message:
        """Let the clients agree on keys."""
        return self.secure.begin(context)

    def explain_unusable_update(
        self, update: Update, method: MethodTraits, layout: Layout, described: Mapping[str, Tensor]
    ) -> str:
        """Check the form of a masked row."""
        return self.secure.explain_unusable_update(update, method, layout, described)

    def explain_unusable_answer(self, answer: Message, asked: Message) -> str:
        """Check that an answer has the form of its step."""
        return self.secure.explain_unusable_answer(answer, asked)

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the kinds of values in a masked row; the state is noised under its mask."""
        how = {
            ", ".join(method.in_state): f"{self._how_noised}, then {HIDDEN}",
            TRAINING_METRICS: f"no loss, counts as planned; {HIDDEN}",
        }
        how |= dict.fromkeys(method.extra_kinds, f"{self._how_noised}, then {HIDDEN}")
        return [
            replace(entry, protected=how.get(entry.kind, entry.protected))
            for entry in self.secure.disclose(update, method)
        ]

    @property
    def _how_noised(self) -> str:
        raise NotImplementedError

    def _draw_from_digest(self, work: ClientWork, context: ClientContext) -> None:
        """Let batch order and the like follow from the digest that the noise is bound to."""
        settings: Any = self.settings
        if settings.batch_seed == "secret":
            stream = _bound_stream("batch order", settings, context)
            work.secret_seed = int(stream.uniform(1)[0] * 2**53)


def _bound_stream(purpose: str, settings: DPSettings, context: ClientContext) -> NoiseStream:
    """Return a client's stream for a purpose, bound to the digest of what it was handed in this round."""
    key = noise_key(settings.noise_seed, seed=context.seed, state=context.state, secret=context.secret)
    bound = tensor_to_bytes(context.state[BOUND]).hex() if BOUND in context.state else "nothing"
    return NoiseStream(key, f"combined: {purpose}", context.client, context.round, bound)


# secure-sum,dp-samples


@dataclass(frozen=True)
class SecureDPSamplesSettings(SecureSumSettings, DPSamplesSettings):
    """Settings of secure summation and of sample-level differential privacy."""

    def __post_init__(self) -> None:
        SecureSumSettings.__post_init__(self)
        DPSamplesSettings.__post_init__(self)


@register_protection
class SecureDPSamples(SealedNoise[SecureDPSamplesSettings]):
    """DP-SGD at every client, and a sum that hides single updates.

    Each client's update carries the whole noise of its own steps, so that epsilon is that of dp-samples,
    whoever else takes part or conspires.
    """

    name = "secure-sum,dp-samples"
    summary = "both: noised gradients at the client, and the server reads only the sum"

    @property
    def noise(self) -> DPSamples:
        """The part that adds noise."""
        return DPSamples(self.settings)

    def resolve(self, run: PlannedRun) -> Self:
        """Fill in delta and noise."""
        return type(self)(self.noise.resolve(run).settings)  # type: ignore[arg-type]

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """State the costs of both."""
        return [*self.noise.cost_notes(run), *self.secure.cost_notes(run)]

    def planned_epsilon(
        self, *, samples: int, plan: LocalTrainingConfig, rounds: int, delta: float
    ) -> float | None:
        """Compute epsilon of a client that participates in every round."""
        return self.noise.planned_epsilon(samples=samples, plan=plan, rounds=rounds, delta=delta)

    def before_training(self, work: ClientWork, context: ClientContext) -> None:
        """Configure DP-SGD; what the server sent for the masks does not change the noise."""
        self.noise.before_training(work, replace(context, received={}))
        self._draw_from_digest(work, context)

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Leave out losses and drawn sizes, then mask."""
        noised = self.noise.seal(update, context)
        extras = {kind: value for kind, value in noised.extras.items() if kind != SPENT}
        return self.secure.seal(replace(noised, extras=extras), context)

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Count the planned steps of every client asked, and open the sum; there is no loss."""
        count_planned(context)
        return replace(self.secure.finish(context, received, rows), loss=math.nan)

    def privacy_spent(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Compute epsilon of the client that spent most."""
        return self.noise.privacy_spent(state)

    @property
    def _how_noised(self) -> str:
        return NOISED

    def statement(self) -> str:
        """State who can learn what."""
        return (
            f"{self.noise.statement()} In addition, updates were masked before they left a client: whoever "
            "runs the server can read only the sum over a round's clients, as long as fewer than the "
            "threshold conspire with it. Epsilon does not depend on that."
        )


# secure-sum,dp-clients


@dataclass(frozen=True)
class SecureDPClientsSettings(SecureSumSettings, DPClientsSettings):
    """Settings of secure summation and of client-level differential privacy."""

    def __post_init__(self) -> None:
        SecureSumSettings.__post_init__(self)
        DPClientsSettings.__post_init__(self)
        if self.adaptive:
            raise UsageError(
                "--protect secure-sum,dp-clients takes a fixed clipping norm: to adapt it, the server would "
                "have to count clipped updates. Give --protect-set clip=X without adaptive"
            )


@register_protection
class SecureDPClients(SealedNoise[SecureDPClientsSettings]):
    """Distributed noise: clients clip, add their part of the noise and mask; the sum has all of it.

    A sum is opened over at least `threshold` clients. Each adds Gaussian noise of variance
    (noise clip)^2 / (threshold - 1), so that the fewest survivors have the accountant's noise together even
    if one of them subtracts its own. More survivors only add to it. The server knows who took part, so
    nothing is gained by sampling clients: a round counts with rate 1 for every client that was asked.
    """

    name = "secure-sum,dp-clients"
    summary = "distributed noise: each client clips and adds its part, the server reads only the noised sum"
    equal_weights = True

    @property
    def noise(self) -> DPClients:
        """The part that clips."""
        return DPClients(self.settings)

    def resolve(self, run: PlannedRun) -> Self:
        """Fill in threshold, delta and noise: the fewest survivors, and so a client's part, are fixed."""
        worst = [Steps(1.0, run.rounds)]
        settings = resolve_noise(self.settings, units=len(run.train_sizes), worst=worst)
        resolved = type(self)(replace(settings, threshold=self.secure.threshold(run.in_round)))
        part, grid = resolved.noise_part(run.in_round), 2.0**-settings.bits
        if part < FINEST * grid:
            raise UsageError(
                f"a client's noise would have a standard deviation of {part:.3g}, too little for the grid of "
                f"{grid:.3g} to which secure-sum rounds: give a larger clip or noise, or more bits"
            )
        return resolved

    def noise_part(self, clients: int) -> float:
        """Return the standard deviation of the noise that one of `clients` adds."""
        fewest = self.secure.threshold(clients)
        return self.settings.multiplier * self.settings.clip / math.sqrt(fewest - 1)

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """State epsilon, what it covers, and how much noise the mean has."""
        settings = self.settings
        spent = compute_epsilon([Steps(1.0, run.rounds)], noise=settings.multiplier, delta=settings.tolerated)
        ratio = self.noise_part(run.in_round) / settings.clip * math.sqrt(run.numbers / run.in_round)
        return [
            f"{self.name}: at most epsilon {spent:.3g} at delta {settings.tolerated:.2g} for a client's data "
            f"after {run.rounds} rounds, towards the server too. It covers the weights of every round; "
            "table statistics, validation scores and a round chosen by them are outside it (--selection last "
            "chooses by none)",
            f"{self.name}: the noise in a round's mean is about {ratio:.2g} times as long as a clipped "
            "update can be; more clients, a smaller model or a larger epsilon make it less. Clients have "
            "equal weights",
            *([f"{self.name}: noise {settings.origin}"] if settings.noise_seed == "run" else []),
            *self.secure.cost_notes(run),
        ]

    def planned_epsilon(
        self, *, samples: int, plan: LocalTrainingConfig, rounds: int, delta: float
    ) -> float | None:
        """Compute epsilon of a client that is asked in every round."""
        return compute_epsilon([Steps(1.0, rounds)], noise=self.settings.multiplier, delta=delta)

    # client half

    def before_training(self, work: ClientWork, context: ClientContext) -> None:
        """Admit and charge the round.

        For one of the client's samples the noise is half as large as for the client: the sample moves the
        clipped update by at most twice the norm.
        """
        settings = self.settings
        if settings.noise_seed == "secret":
            fewest = self.secure.threshold(len(context.received[ROSTER]))
            admit_training(
                work,
                replace(context, received={}),
                replace(settings, threshold=fewest),
                Spending(settings.multiplier / 2, 1.0, 1),
            )
        self._draw_from_digest(work, context)

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Clip the change, add this client's part of the noise, and mask; the loss is not sent."""
        assert context.start is not None, "updates are sealed after training"
        start = context.start.to(update.weights.device).double()
        change = clip_to_norm(update.weights.double() - start, self.settings.clip).vector
        stream = _bound_stream("noise", self.settings, context)
        part = self.noise_part(len(context.received[ROSTER]))
        drawn = torch.from_numpy(stream.normal(len(change)) * part).to(change)
        noised = replace(update, weights=start + change + drawn, loss=0.0, diagnostics={}, extras={})
        return self.secure.seal(noised, replace(context, method=_equal_weights(context.method)))

    # server half

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Open the sum, which is noised already; the round counts for every client asked."""
        for client in context.clients:
            key = _ASKED + client
            context.state[key] = add_steps(context.state.get(key), Steps(1.0, 1))
        opened = self.secure.finish(replace(context, method=_equal_weights(context.method)), received, rows)
        uniform = context.method.weighting == "uniform"
        return replace(opened, updates=replace(opened.updates, uniform=uniform), loss=math.nan)  # type: ignore[call-arg]

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the kinds of values in a masked row; no number of samples is in it."""
        return super().disclose(update, _equal_weights(method))

    def privacy_spent(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Compute epsilon of the client that was asked most often."""
        histories = [read_steps(value) for key, value in state.items() if key.startswith(_ASKED)]
        if not histories:
            return {}
        settings, rounds = self.settings, max(steps.number for (steps,) in histories)
        spent = compute_epsilon([Steps(1.0, rounds)], noise=settings.multiplier, delta=settings.tolerated)
        return privacy_record(
            settings,
            unit="client",
            epsilon=spent,
            clip=settings.clip,
            sampling_rate=1.0,
            steps=rounds,
            fewest_survivors=settings.threshold,
        )

    @property
    def _how_noised(self) -> str:
        return "clipped and noised in part at the client"

    def statement(self) -> str:
        """State who can learn what."""
        return (
            "Each client's update was shortened to a norm, got the client's part of Gaussian noise, and was "
            "masked before it left. Whoever runs the server can read only the noised sum over a round's "
            "clients: it hides, up to epsilon and delta, what any one client's data contributed, from the "
            "server and from each of the other clients, as long as at most one client tells its noise and "
            "fewer than the threshold conspire with the server. Which clients took part is known, and so are "
            "sums of steps and samples seen, which follow from numbers told beforehand; scores on validation "
            f"and test samples left without noise. The noise came {self.settings.origin}."
        )


def _equal_weights(method: MethodTraits) -> MethodTraits:
    return replace(method, weighting="uniform")


def explain_combination(names: Sequence[str]) -> str:
    """Explain why these protections are not combined."""
    known = [name for name in PROTECTIONS if "," in name]
    offered = f"Combinations: {' or '.join(known)}"
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return f"{twice[0]} is named twice"
    if "none" in names:
        return "none means that there is no protection: leave it out, or name it alone"
    if len(names) > 2:
        return f"at most two combine. {offered}"
    kinds = [PROTECTIONS[name] for name in names]
    if all(kind.seals for kind in kinds):
        return "both hide single updates from the server, so one of them is enough"
    if not any(kind.seals for kind in kinds):
        return (
            "both add noise, for different units (a client, a sample), and neither accounts for the "
            "other's: choose one"
        )
    return f"noise combines with secure-sum only. {offered}"
