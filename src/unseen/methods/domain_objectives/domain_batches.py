"""The domains of one client: which samples belong to which, and batches that hold them in equal numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from unseen.errors import UsageError
from unseen.methods.base import Method
from unseen.training import ClientWork
from unseen.training.client import Draw
from unseen.training.preprocessing import count_batches

SMALLEST_PART = 2
"""Number of samples of a domain in a batch below which it has no variance and cannot be halved."""


def group_by_domain(work: ClientWork, method: Method[Any]) -> dict[int, Tensor]:
    """Map the number of each domain that the client holds to the positions of its training samples.

    A client with fewer domains than the method needs is refused: plain training under another name would
    be what public code does.
    """
    domains = work.train.domains
    held = [int(number) for number in domains.unique()]
    names = [work.train.domain_names[number] for number in held]
    if reason := method.explain_few_domains(work.client, names):
        raise UsageError(reason)
    return {number: (domains == number).nonzero().squeeze(1) for number in held}


def draw_balanced(groups: Sequence[Tensor]) -> Draw:
    """Return a draw whose batches hold equally many samples of every group, at least two.

    An epoch has as many batches as otherwise; a small group is passed through several times.
    """

    def draw(
        count: int, batch_size: int, *, generator: torch.Generator, batches: int | None = None
    ) -> Iterator[Tensor]:
        steps = count_batches(count, batch_size, batches)
        each = max(batch_size // len(groups), SMALLEST_PART)
        streams = [_pass_through(group, steps * each, generator).split(each) for group in groups]
        for parts in zip(*streams, strict=True):
            yield torch.cat(parts)

    return draw


def draw_in_turn(groups: Sequence[Tensor]) -> Draw:
    """Return a draw whose batches hold one group each: lap after lap through all, in random order."""

    def draw(
        count: int, batch_size: int, *, generator: torch.Generator, batches: int | None = None
    ) -> Iterator[Tensor]:
        steps = count_batches(count, batch_size, batches)
        laps = -(-steps // len(groups))
        streams = [_pass_through(group, laps * batch_size, generator).split(batch_size) for group in groups]
        for lap in range(laps):
            order = torch.randperm(len(groups), generator=generator).tolist()
            for number in order[: steps - lap * len(groups)]:
                yield streams[number][lap]

    return draw


def _pass_through(group: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return so many members of a group, in random order, pass after pass."""
    passes = [torch.randperm(len(group), generator=generator) for _ in range(-(-count // len(group)))]
    return group[torch.cat(passes)[:count]]
