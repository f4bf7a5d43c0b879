"""Tallies on the wire: sums over a site's samples, from which metrics follow."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from unseen.deploy.flower.message import SiteMessage, to_tensor
from unseen.engine.experiment import Experiment
from unseen.errors import UnseenError
from unseen.evaluation import ClassificationTally, Tally, make_tally
from unseen.evaluation.tally import RegressionTally


def pack_tallies(tallies: Sequence[Tally]) -> SiteMessage:
    """Put tallies into a message, in their order."""
    message = SiteMessage({"losses": []})
    for number, tally in enumerate(tallies):
        if isinstance(tally, ClassificationTally):
            message.arrays[str(number)] = tally.confusion.numpy()
            message.header["losses"].append(tally.loss)
        elif isinstance(tally, RegressionTally):
            message.arrays[str(number)] = tally.moments.numpy()
            message.header["losses"].append(0.0)
    return message


def unpack_tallies(message: SiteMessage, count: int, experiment: Experiment) -> list[Tally]:
    """Read as many tallies as were asked for."""
    tallies: list[Tally] = []
    for number in range(count):
        tally = make_tally(
            experiment.data.task, experiment.data.outputs, target_scale=experiment.target_scale
        )
        sums = to_tensor(message.arrays.get(str(number), torch.empty(0).numpy()))
        if isinstance(tally, ClassificationTally):
            _require_shape(sums, tally.confusion)
            tally.confusion, tally.loss = sums.long(), float(message.header["losses"][number])
        elif isinstance(tally, RegressionTally):
            _require_shape(sums, tally.moments)
            tally.moments = sums.double()
        tallies.append(tally)
    return tallies


def _require_shape(found: torch.Tensor, wanted: torch.Tensor) -> None:
    if found.shape != wanted.shape:
        raise UnseenError(f"sent a tally of shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
