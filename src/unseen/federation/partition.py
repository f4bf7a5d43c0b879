"""How the samples of the source domains are dealt to clients: every sample to exactly one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.errors import UsageError, unknown_name
from unseen.federation.split import Split, apportion
from unseen.seeding import numpy_generator

Partition = Literal["domain", "iid", "dirichlet", "mixed"]
PARTITIONS: tuple[Partition, ...] = get_args(Partition)
Labels = npt.NDArray[np.int8]
DIRICHLET_DRAWS = 5


@dataclass(frozen=True)
class PartitionConfig:
    """Who holds what.

    domain     one client a domain, named like it; with more clients a domain it is "iid"
    iid        every domain dealt evenly over its clients "<domain>-<i>"
    dirichlet  the same clients with skewed labels: each class is shared out by Dirichlet(alpha)
    mixed      clients "client-<i>"; heterogeneity 1: each holds one domain, 0: all hold the same mix
    """

    kind: Partition = "domain"
    clients_per_domain: int = 1
    alpha: float = 0.5
    heterogeneity: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in PARTITIONS:
            raise unknown_name("partition", self.kind, PARTITIONS)
        if self.clients_per_domain < 1:
            raise UsageError(f"{self.clients_per_domain} clients per domain is impossible; use 1 or more")
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise UsageError(f"Dirichlet alpha {self.alpha} is impossible; use a number above 0")
        if not 0 <= self.heterogeneity <= 1:
            raise UsageError(f"heterogeneity {self.heterogeneity} is impossible; use a number from 0 to 1")


def deal(
    data: DataSet, plan: PartitionConfig, *, splits: Mapping[str, Labels], seed: int
) -> tuple[list[str], dict[str, Indices]]:
    """Name the clients, and give for every domain of `splits` the client of each of its samples."""
    each = plan.clients_per_domain
    if plan.kind == "dirichlet" and not data.task_type.has_classes:
        raise UsageError("the partition 'dirichlet' skews classes, but this task is regression; use 'iid'")
    for domain, labels in splits.items():
        available = int(np.count_nonzero(labels == Split.TRAIN))
        if available < each:
            raise UsageError(
                f"domain {domain!r} has {available} training samples for {each} clients; at most {available} "
                "clients per domain are possible: lower --clients-per-domain"
            )
    owners: dict[str, Indices] = {}
    for number, (domain, labels) in enumerate(splits.items()):
        generator = numpy_generator(seed, "partition", plan.kind, domain)
        if plan.kind == "mixed":
            shares = _mixed_shares(plan, main_domain=number, domains=len(splits))
            owners[domain] = _deal_mixed(labels, shares, number * each, each, generator)
        elif plan.kind == "dirichlet":
            owners[domain] = number * each + _deal_dirichlet(
                data.targets[data.indices(domain)], labels, each, plan.alpha, generator
            )
        else:
            owners[domain] = number * each + _deal_evenly(labels, each, generator)
    if plan.kind == "mixed":
        return [f"client-{i}" for i in range(1, each * len(splits) + 1)], owners
    if plan.kind == "domain" and each == 1:
        return list(splits), owners
    return [f"{domain}-{i}" for domain in splits for i in range(1, each + 1)], owners


def _deal_evenly(labels: Labels, clients: int, generator: np.random.Generator) -> Indices:
    """Deal like cards, one split after the other: clients differ by one sample at most."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    owner[order] = np.arange(len(labels)) % clients
    return owner


def _mixed_shares(plan: PartitionConfig, *, main_domain: int, domains: int) -> npt.NDArray[np.float64]:
    """Share of one domain at every client: h [main]/mains + (1 - h)/clients."""
    each, h = plan.clients_per_domain, plan.heterogeneity
    shares = np.full(each * domains, (1 - h) / (each * domains))
    shares[main_domain * each : (main_domain + 1) * each] += h / each
    return shares


def _deal_mixed(
    labels: Labels,
    shares: npt.NDArray[np.float64],
    first_main: int,
    mains: int,
    generator: np.random.Generator,
) -> Indices:
    """Deal one domain by shares; its main clients get at least one training sample each."""
    owner = np.empty(len(labels), dtype=np.int64)
    for split in Split:
        rows = generator.permutation(np.flatnonzero(labels == split))
        promised = np.zeros(len(shares), dtype=np.int64)
        promised[first_main : first_main + mains] = split == Split.TRAIN
        counts = apportion(len(rows), shares, generator=generator, at_least=promised)
        owner[rows] = np.repeat(np.arange(len(shares)), counts)
    return owner


def _deal_dirichlet(
    classes: Indices, labels: Labels, clients: int, alpha: float, generator: np.random.Generator
) -> Indices:
    """Share out each class by Dirichlet proportions, the same in every split.

    Every client gets at least two training samples (one where the domain has no more): a draw that
    fails this is repeated a few times, and then samples move from the largest clients to the poorest.
    """
    training = np.flatnonzero(labels == Split.TRAIN)
    fewest = 2 if len(training) >= 2 * clients else 1
    owner = np.empty(len(labels), dtype=np.int64)
    for _ in range(DIRICHLET_DRAWS):
        for number in np.unique(classes):
            shares = generator.dirichlet(np.full(clients, alpha))
            for split in Split:
                rows = generator.permutation(np.flatnonzero((classes == number) & (labels == split)))
                counts = apportion(len(rows), shares, generator=generator)
                owner[rows] = np.repeat(np.arange(clients), counts)
        if np.bincount(owner[training], minlength=clients).min() >= fewest:
            return owner
    owner[training] = _level_up(owner[training], clients, fewest, generator)
    return owner


def _level_up(owner: Indices, clients: int, fewest: int, generator: np.random.Generator) -> Indices:
    """Move random samples from the largest clients until every client has `fewest`."""
    sizes = np.bincount(owner, minlength=clients)
    lacking = np.repeat(np.arange(clients), np.maximum(fewest - sizes, 0))
    order = generator.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    place_in_client = np.arange(len(owner)) - np.repeat(starts, sizes)
    moved = order[np.argsort(-place_in_client, kind="stable")[: len(lacking)]]
    levelled = owner.copy()
    levelled[moved] = lacking
    return levelled
