"""DeepAll: all source data in one place and one model. The centralized reference, not a federation."""

from __future__ import annotations

from torch import Tensor

from unseen.aggregation import ServerWork
from unseen.hparams import Settings
from unseen.methods.base import Method, Paper, register


@register
class DeepAll(Method[Settings]):
    """Plain training on the pooled source domains: the result if data could be shared."""

    name = "deepall"
    title = "DeepAll"
    summary = "all source data pooled, one model: the centralized reference"
    paper = Paper(
        title="Deeper, Broader and Artier Domain Generalization",
        authors="Li, Yang, Song, Hospedales",
        year=2017,
        venue="ICCV",
        url="https://arxiv.org/abs/1710.03077",
    )
    topology = "pooled"
    sends = ("all training data",)
    of_single_samples = sends

    def server(self, work: ServerWork) -> Tensor:
        """Return the only model."""
        return work.updates.mean(work.updates.samples)
