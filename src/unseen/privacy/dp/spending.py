"""What a client's training costs in privacy, and the door that every noised answer passes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

import torch

from unseen.privacy.answer_journal import digest_tensors
from unseen.privacy.budget import Spending
from unseen.privacy.context import ClientContext
from unseen.privacy.dp.accountant import Steps
from unseen.privacy.dp.dp_settings import DPSettings
from unseen.privacy.serialization import bytes_to_tensor
from unseen.training import ClientWork, LocalTrainingConfig

TRAINING = "train"
BOUND = "digest that noise is bound to"


def steps_in_epoch(count: int, batch_size: int, batches: int | None) -> int:
    """Return the number of steps per epoch, as many as for batches in order."""
    return batches or -(-count // batch_size)


def planned_steps(size: int, plan: LocalTrainingConfig) -> Steps:
    """Return a client's steps in one round: they follow from its number of samples and the plan."""
    return Steps(
        min(plan.batch_size / size, 1.0),
        plan.epochs * steps_in_epoch(size, plan.batch_size, plan.batches_per_epoch),
    )


def admit_training(
    work: ClientWork, context: ClientContext, settings: DPSettings, spending: Spending
) -> bytes:
    """Admit and charge a client's training before it begins; return the digest that its noise is bound to.

    The digest covers all that the client was handed and all that it kept: the same input gives the same
    noise (a round repeated after a crash), and other input other noise, which cannot be subtracted. It
    also covers the client's key, so that a lost key does not put a second noise on the same input.
    """
    about = {
        "job": context.job.hex(),
        "client": context.client,
        "round": context.round,
        "method": context.method.name,
        "settings": asdict(settings),
        "plan": asdict(work.plan),
        "samples": len(work.train),
        "key": hashlib.sha256(context.secret + b"fingerprint").hexdigest(),
    }
    digest = digest_tensors(
        {"weights": work.start},
        work.received,
        context.received,
        work.state,
        about=json.dumps(about, sort_keys=True, default=str),
    )
    context.journal.admit(client=context.client, round=context.round, purpose=TRAINING, digest=digest)
    context.budget.charge(client=context.client, round=context.round, digest=digest, spending=spending)
    context.state[BOUND] = bytes_to_tensor(digest)
    return digest


def add_steps(known: torch.Tensor | None, taken: Steps) -> torch.Tensor:
    """Add a round's steps to a client's history of (rate, steps), joined to the last ones of equal rate."""
    new = torch.tensor([[taken.rate, taken.number]], dtype=torch.float64)
    if known is None:
        return new
    if float(known[-1, 0]) != taken.rate:
        return torch.cat([known, new])
    known = known.clone()
    known[-1, 1] += taken.number
    return known


def read_steps(history: torch.Tensor) -> tuple[Steps, ...]:
    """Read a history that `add_steps` wrote."""
    pairs: Sequence[tuple[float, float]] = history.tolist()
    return tuple(Steps(rate, int(number)) for rate, number in pairs)
