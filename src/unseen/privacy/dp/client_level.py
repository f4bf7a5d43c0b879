"""Client-level differential privacy: clipped updates, and noise on their sum.

The released weights reveal little more about a client than if it had not participated. The server is
trusted: it sees every clipped update and adds the noise. The clip norm is fixed, or follows a quantile of the
clients' norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from unseen.aggregation import SummedUpdates
from unseen.errors import UsageError
from unseen.federation import clients_per_round
from unseen.hparams import setting
from unseen.models import Layout
from unseen.privacy.base import Protection, explain_missing_sum, register_protection
from unseen.privacy.context import (
    ClientContext,
    Message,
    MethodTraits,
    PlannedRun,
    ReceivedUpdate,
    RoundUpdates,
    ServerContext,
)
from unseen.privacy.disclosure import DisclosureEntry, unprotected_entries
from unseen.privacy.dp.accountant import Steps, compute_epsilon, require_opacus
from unseen.privacy.dp.dp_settings import DPSettings, privacy_record, require_no_buffers, resolve_noise
from unseen.privacy.dp.noise import NoiseStream, noise_key
from unseen.training import Update


class ClippedVector(NamedTuple):
    """A vector clipped to the bound, and whether it was within the bound before."""

    vector: Tensor
    within: bool


def clip_to_norm(vector: Tensor, bound: float) -> ClippedVector:
    """Scale a vector down to the bound if its norm is larger."""
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    if norm <= bound:
        return ClippedVector(vector, True)
    return ClippedVector(vector * (bound / norm), False)


class NoiseSplit(NamedTuple):
    """One mechanism's noise, split between the sum of updates and the count of those within the bound.

    updates  the noise multiplier for the sum of updates, whose parts have norm 1 in units of the bound
    counts   the std of the noise on the sum of the counts (each +1/2 or -1/2)
    """

    updates: float
    counts: float


def split_noise(noise: float, *, share: float) -> NoiseSplit:
    """Split noise so that both parts together spend what `noise` spends (Andrew et al. 2021, theorem 1).

    1/noise^2 = 1/updates^2 + 1/(2 counts)^2; `share` is the second term's fraction of the whole. With share 0
    nothing is counted.
    """
    if not share:
        return NoiseSplit(updates=noise, counts=math.inf)
    return NoiseSplit(updates=noise / math.sqrt(1 - share), counts=noise / (2 * math.sqrt(share)))


def update_clip_norm(bound: float, within: float, *, quantile: float, rate: float) -> float:
    """Update the bound geometrically: C exp(-rate (b - quantile)) for a fraction b within it (section 2)."""
    return bound * math.exp(-rate * (within - quantile))


WITHIN = "whether the update was within the clipping norm"
_CLIP, _RATE, _ROUNDS = "clipping norm", "rate of participation", "rounds"


@dataclass(frozen=True)
class DPClientsSettings(DPSettings):
    """Settings of client-level differential privacy."""

    adaptive: bool = setting(
        False, "let the clipping norm follow a quantile of the clients' norms; `clip` is then the first one"
    )
    quantile: float = setting(0.5, "adaptive: the target fraction of updates within the norm")
    clip_rate: float = setting(0.2, "adaptive: learning rate of the norm (paper 0.2)")
    clip_share: float = setting(
        0.1, "adaptive: the fraction of the budget (of 1/noise^2) spent on counting updates within the norm"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("quantile", "clip_share"):
            if not 0 < getattr(self, name) < 1:
                raise UsageError(f"setting {name!r} must be between 0 and 1, not {getattr(self, name)}")
        if not self.clip_rate > 0:
            raise UsageError(f"setting 'clip_rate' must be above 0, not {self.clip_rate}")


@register_protection
class DPClients(Protection[DPClientsSettings]):
    """DP-FedAvg with noise on the server (McMahan et al. 2018), adaptive clipping (Andrew et al. 2021).

    All clients have equal weights: weighted by samples, a client's contribution would be bounded only by its
    size, and the sizes would be private themselves. The sum is divided by the expected number of clients,
    since the sampled number is private too.
    """

    name = "dp-clients"
    summary = "clipped updates and noise on their sum: the model hides whether a client took part"
    extra = "dp"
    sends = (WITHIN,)
    draws_clients = True
    sums_only = True
    equal_weights = True

    def incompatibility(self, method: MethodTraits) -> str | None:
        """Accept methods whose server half needs only one mean of states."""
        if missing := explain_missing_sum(method, updates_to="clip", sum_to="add noise to"):
            return missing
        if method.needs_individual_updates:
            return "its server half uses every client's own update, and noise on their sum hides none"
        if method.extra_kinds:
            return f"it also sends {' and '.join(method.extra_kinds)}, which has no bound and gets no noise"
        return None

    def check(self, run: PlannedRun) -> None:
        """Refuse batch norm."""
        require_opacus()
        require_no_buffers(
            self.name,
            run.module,
            "they are not part of a clipped update, and noise would make variances negative",
        )

    def resolve(self, run: PlannedRun) -> Self:
        """Fill in delta and the noise for a target epsilon."""
        steps = Steps(run.in_round / len(run.train_sizes), run.rounds)
        return type(self)(resolve_noise(self.settings, units=len(run.train_sizes), worst=[steps]))

    def cost_notes(self, run: PlannedRun) -> list[str]:
        """State the final epsilon, what it covers, and the ratio of noise to one client's update."""
        settings, rate = self.settings, run.in_round / len(run.train_sizes)
        spent = compute_epsilon(
            [Steps(rate, run.rounds)], noise=settings.multiplier, delta=settings.tolerated
        )
        ratio = self._noises.updates * math.sqrt(run.numbers) / run.in_round
        return [
            f"{self.name}: epsilon {spent:.3g} at delta {settings.tolerated:.2g} for a client after "
            f"{run.rounds} rounds. It covers the weights of every round; the training loss, table "
            "statistics, validation scores and a round chosen by them are outside it (--selection "
            "last chooses by none)",
            f"{self.name}: the noise in a round's mean is about {ratio:.2g} times as long as a clipped "
            "update can be; more clients, a smaller model or a larger epsilon make it less. Clients have "
            "equal weights",
            *([f"{self.name}: noise {settings.origin}"] if settings.noise_seed == "run" else []),
        ]

    # client sampling

    def sample_clients(
        self, clients: int, *, fraction: float, round: int, seed: int, state: MutableMapping[str, Tensor]
    ) -> Sequence[int]:
        """Sample every client independently (Poisson), as the accountant assumes; a round may be empty."""
        rate = clients_per_round(clients, fraction) / clients
        state[_RATE] = torch.tensor([rate], dtype=torch.float64)
        stream = self._stream("participation", round, seed=seed, state=state)
        drawn: list[int] = stream.sample(clients, rate).tolist()
        return drawn

    # client half

    def seal(self, update: Update, context: ClientContext) -> Update:
        """Clip the difference from the round's start; diagnostics are not sent."""
        assert context.start is not None, "updates are sealed after training"
        start = context.start.to(update.weights.device)
        change = clip_to_norm(update.weights - start, float(context.received[_CLIP]))
        extras = {WITHIN: torch.tensor([change.within])} if self.settings.adaptive else {}
        return replace(update, weights=start + change.vector, extras=extras, diagnostics={})

    # server half

    def begin(self, context: ServerContext) -> Message:
        """Send the clipping norm to the clients."""
        return {_CLIP: torch.tensor([self._clip(context.state)], dtype=torch.float64)}

    def finish(
        self, context: ServerContext, received: Sequence[ReceivedUpdate], rows: Tensor
    ) -> RoundUpdates:
        """Sum the clipped updates, add noise, and divide by the expected number of clients.

        Updates are clipped again: rounding, or a client that does not clip, may have left them longer.
        """
        clip, noises = self._clip(context.state), self._noises
        expected = float(context.state[_RATE]) * context.population
        total = torch.zeros(len(context.weights), dtype=torch.float64)
        for row in rows:
            total += clip_to_norm(row.double() - context.weights.double(), clip).vector
        stream = self._stream("noise", context.round, seed=context.seed, state=context.state)
        total += torch.from_numpy(stream.normal(len(total)) * noises.updates * clip)
        if self.settings.adaptive:
            centred = sum(float(update.extras[WITHIN]) - 0.5 for _, update in received)
            part = (centred + noises.counts * float(stream.normal(1)[0])) / expected + 0.5
            clip = update_clip_norm(clip, part, quantile=self.settings.quantile, rate=self.settings.clip_rate)
            context.state[_CLIP] = torch.tensor([clip], dtype=torch.float64)
        context.state[_ROUNDS] = torch.tensor([context.round])
        return RoundUpdates(
            updates=SummedUpdates(
                clients=tuple(client for client, _ in received),
                rows=(context.weights.double() + total / expected).float()[None],
                samples=torch.tensor([expected], dtype=torch.float64),
                steps=torch.tensor([float(sum(update.steps for _, update in received))], dtype=torch.float64),
                extras=({},),
                layout=context.layout,
                uniform=context.method.weighting == "uniform",
                expected=expected,
            ),
            loss=sum(update.loss for _, update in received) / len(received) if received else math.nan,
            seen=sum(update.seen for _, update in received),
        )

    def explain_unusable_update(
        self, update: Update, method: MethodTraits, layout: Layout, described: Mapping[str, Tensor]
    ) -> str:
        """Check what the adaptive norm is computed from: one yes or no."""
        found = update.extras.get(WITHIN)
        if self.settings.adaptive != (found is not None):
            return f"did not send {WITHIN!r} as the job says"
        fits = found is None or (found.dtype is torch.bool and found.shape == (1,))
        return "" if fits else f"sent {WITHIN!r} that is no yes or no"

    # disclosure

    def disclose(self, update: Update, method: MethodTraits) -> list[DisclosureEntry]:
        """List the entries: updates are clipped when sent, and noised only at the server."""
        state = ", ".join(method.in_state)
        how = {
            state: "clipped; the server adds noise to the sum",
            WITHIN: "the server adds noise to the sum",
        }
        return [
            replace(line, protected=how.get(line.kind, line.protected))
            for line in unprotected_entries(update, method)
        ]

    def privacy_spent(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Compute epsilon after the rounds so far; it depends only on number of rounds, rate and noise."""
        if _ROUNDS not in state:
            return {}
        settings, rate, rounds = self.settings, float(state[_RATE]), int(state[_ROUNDS])
        epsilon = compute_epsilon([Steps(rate, rounds)], noise=settings.multiplier, delta=settings.tolerated)
        return privacy_record(
            settings,
            unit="client",
            epsilon=epsilon,
            clip=self._clip(state),
            sampling_rate=rate,
            steps=rounds,
        )

    def statement(self) -> str:
        """State who can learn what."""
        return (
            "Each client's update was shortened to a norm before it left, and the server added Gaussian "
            "noise to their sum: the weights of every round hide, up to epsilon and delta, whether a client "
            "took part. Whoever runs the server can read each client's shortened update, its number of "
            f"samples and its training loss. The noise came {self.settings.origin}."
        )

    @property
    def _noises(self) -> NoiseSplit:
        share = self.settings.clip_share if self.settings.adaptive else 0.0
        return split_noise(self.settings.multiplier, share=share)

    def _clip(self, state: Mapping[str, Tensor]) -> float:
        return float(state[_CLIP]) if _CLIP in state else self.settings.clip

    def _stream(
        self, purpose: str, round: int, *, seed: int, state: MutableMapping[str, Tensor]
    ) -> NoiseStream:
        key = noise_key(self.settings.noise_seed, seed=seed, state=state)
        return NoiseStream(key, f"{self.name}: {purpose}", "server", round)
