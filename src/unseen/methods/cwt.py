"""CWT: cyclic weight transfer. One model visits the clients one after another; nothing is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from unseen.aggregation import ServerWork
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.seeding import numpy_generator


@dataclass(frozen=True)
class CWTSettings(Settings):
    """Settings of CWT."""

    order: Literal["fixed", "shuffled"] = setting(
        "fixed", "visit the clients in the federation's order, or in a fresh random order every round"
    )


@register
class CWT(Method[CWTSettings]):
    """Cyclic weight transfer: each client continues training the model of the client before it.

    A round is one cycle through its participants (MDFL's paper, section 3.2 and figure 3).
    """

    name = "cwt"
    title = "CWT"
    summary = "the model visits the clients one after another; nothing is averaged"
    paper = Paper(
        title="Distributed deep learning networks among institutions for medical imaging",
        authors="Chang, Balachandar, Lam, Yi, Brown, Beers, Rosen, Rubin, Kalpathy-Cramer",
        year=2018,
        venue="Journal of the American Medical Informatics Association",
        url="https://doi.org/10.1093/jamia/ocy017",
    )
    topology = "serial"

    def visiting_order(self, clients: Sequence[int], *, round: int, seed: int) -> Sequence[int]:
        """Keep the order, or draw one for the round."""
        if self.settings.order == "fixed":
            return clients
        drawn: list[int] = numpy_generator(seed, "visiting order", round).permutation(clients).tolist()
        return drawn

    def server(self, work: ServerWork) -> Tensor:
        """Pass on the model of the only client of this step."""
        return work.updates.rows[0].clone()
