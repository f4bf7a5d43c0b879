"""Where the random choices of local training come from under a protection that seals updates.

Drawn from the run's seed, two trainings from the same weights give the same update to the bit, and the
difference of two sums over different clients is then one client's update: of a round repeated after a crash,
or of the first rounds of several runs. With a secret of the client, fresh for every attempt, the two updates
differ. That blurs such a difference; it does not hide it as noise of differential privacy would.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

from unseen.hparams import Settings, setting
from unseen.training import ClientWork

BatchSeed = Literal["secret", "run"]


@dataclass(frozen=True)
class SealingSettings(Settings):
    """Settings of every protection that seals updates."""

    batch_seed: BatchSeed = setting(
        "secret",
        "source of batch order, augmentation and dropout: secret = fresh entropy of each client, so a run "
        "cannot be repeated to the bit; run = --seed, for tests and experiments, where sums of several runs "
        "can be subtracted",
    )

    @property
    def order_statement(self) -> str:
        """State where batch order came from, for the record."""
        if self.batch_seed == "run":
            return (
                "Batch order came from the run's seed: the run can be repeated to the bit, and whoever has "
                "its sums over different clients can subtract them."
            )
        return "Batch order came from each client's own secret, so the run cannot be repeated to the bit."


def draw_batches(work: ClientWork, settings: SealingSettings) -> None:
    """Let a client draw its batches from a fresh secret, unless the settings say otherwise."""
    if settings.batch_seed == "secret":
        work.secret_seed = secrets.randbits(63)
