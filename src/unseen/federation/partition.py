"""Partitions: how the samples of the source domains are assigned to clients, every sample to exactly one.

A partition is a function in the registry `PARTITIONS`, so a plugin file can add one. It gets the split of
every source domain and returns the clients' names and, for every domain, the client of each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.errors import UsageError, unknown_name
from unseen.federation.split import Split, apportion
from unseen.registry import Registry
from unseen.seeding import numpy_generator

Labels = npt.NDArray[np.int8]
DIRICHLET_DRAWS = 5


class Assignment(NamedTuple):
    """Names of all clients, and per domain the position of the client that holds each of its samples."""

    names: list[str]
    owners: dict[str, Indices]


@dataclass(frozen=True)
class PartitionRequest:
    """Input of a partition.

    splits  per source domain the `Split` of each sample, in the order of `data.indices(domain)`
    """

    data: DataSet
    splits: Mapping[str, Labels]
    config: PartitionConfig
    seed: int

    def generator(self, domain: str) -> np.random.Generator:
        """Create the random generator of one domain; it depends on no other domain."""
        return numpy_generator(self.seed, "partition", self.config.kind, domain)


Partition = Callable[[PartitionRequest], Assignment]
PARTITIONS: Registry[Partition] = Registry("partition", group="unseen.partitions")
P = TypeVar("P", bound=Partition)
_WITHIN = "within_domains"


@dataclass(frozen=True)
class PartitionConfig:
    """Name and parameters of a partition.

    kind                a name in `PARTITIONS`
    clients_per_domain  clients that share one source domain
    alpha               concentration of the partition "dirichlet": the smaller, the more skewed
    heterogeneity       for "mixed"; 1: each client holds one domain, 0: all hold the same mix
    """

    kind: str = "domain"
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


def within_domains(partition: P) -> P:
    """Mark a partition that treats each domain separately, so that sites can compute it independently."""
    setattr(partition, _WITHIN, True)
    return partition


def require_separable(config: PartitionConfig) -> None:
    """Refuse clients that would hold samples of several sites."""
    if not getattr(PARTITIONS[config.kind], _WITHIN, False):
        raise UsageError(
            f"the partition {config.kind!r} assigns samples of several sites to one client, but sites "
            "do not share samples"
        )


def assign_clients(
    data: DataSet, config: PartitionConfig, *, splits: Mapping[str, Labels], seed: int
) -> Assignment:
    """Name the clients, and assign each sample of every domain of `splits` to a client."""
    each = config.clients_per_domain
    for domain, labels in splits.items():
        available = int(np.count_nonzero(labels == Split.TRAIN))
        if available < each:
            raise UsageError(
                f"domain {domain!r} has {available} training samples for {each} clients; at most {available} "
                "clients per domain are possible: lower --clients-per-domain"
            )
    return PARTITIONS[config.kind](PartitionRequest(data, splits, config, seed))


@PARTITIONS.register("domain")
@within_domains
def partition_by_domain(request: PartitionRequest) -> Assignment:
    """One client per domain, named like it; with more clients per domain it is "iid"."""
    names, owners = partition_evenly(request)
    return Assignment(list(request.splits) if request.config.clients_per_domain == 1 else names, owners)


@PARTITIONS.register("iid")
@within_domains
def partition_evenly(request: PartitionRequest) -> Assignment:
    """Every domain is divided evenly and at random among its clients "<domain>-<i>"."""
    each = request.config.clients_per_domain
    owners = {
        domain: number * each + _deal_evenly(labels, each, request.generator(domain))
        for number, (domain, labels) in enumerate(request.splits.items())
    }
    return Assignment(_names_by_domain(request), owners)


@PARTITIONS.register("dirichlet")
@within_domains
def partition_by_dirichlet(request: PartitionRequest) -> Assignment:
    """Clients of one domain with skewed labels: each class is divided by Dirichlet(alpha) proportions."""
    data, each = request.data, request.config.clients_per_domain
    if not data.task_type.has_classes:
        raise UsageError("the partition 'dirichlet' skews classes, but this task is regression; use 'iid'")
    owners = {
        domain: number * each
        + _deal_dirichlet(
            data.targets[data.indices(domain)],
            labels,
            each,
            request.config.alpha,
            request.generator(domain),
        )
        for number, (domain, labels) in enumerate(request.splits.items())
    }
    return Assignment(_names_by_domain(request), owners)


@PARTITIONS.register("mixed")
def partition_mixed(request: PartitionRequest) -> Assignment:
    """Clients "client-<i>" over all domains; --heterogeneity 1: one domain each, 0: all hold the same mix."""
    each, domains = request.config.clients_per_domain, len(request.splits)
    owners = {}
    for number, (domain, labels) in enumerate(request.splits.items()):
        fractions = _mixed_fractions(request.config, main_domain=number, domains=domains)
        owners[domain] = _deal_mixed(labels, fractions, number * each, each, request.generator(domain))
    return Assignment([f"client-{i}" for i in range(1, each * domains + 1)], owners)


def _names_by_domain(request: PartitionRequest) -> list[str]:
    each = request.config.clients_per_domain
    return [f"{domain}-{i}" for domain in request.splits for i in range(1, each + 1)]


def _deal_evenly(labels: Labels, clients: int, generator: np.random.Generator) -> Indices:
    """Assign samples in turn, one split after the other: clients differ by one sample at most."""
    order = generator.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    owner[order] = np.arange(len(labels)) % clients
    return owner


def _mixed_fractions(config: PartitionConfig, *, main_domain: int, domains: int) -> npt.NDArray[np.float64]:
    """Compute the fraction of one domain at every client: h [main]/mains + (1 - h)/clients."""
    each, h = config.clients_per_domain, config.heterogeneity
    fractions = np.full(each * domains, (1 - h) / (each * domains))
    fractions[main_domain * each : (main_domain + 1) * each] += h / each
    return fractions


def _deal_mixed(
    labels: Labels,
    fractions: npt.NDArray[np.float64],
    first_main: int,
    mains: int,
    generator: np.random.Generator,
) -> Indices:
    """Divide one domain by fractions; its main clients get at least one training sample each."""
    owner = np.empty(len(labels), dtype=np.int64)
    for split in Split:
        rows = generator.permutation(np.flatnonzero(labels == split))
        promised = np.zeros(len(fractions), dtype=np.int64)
        promised[first_main : first_main + mains] = split == Split.TRAIN
        counts = apportion(len(rows), fractions, generator=generator, at_least=promised)
        owner[rows] = np.repeat(np.arange(len(fractions)), counts)
    return owner


def _deal_dirichlet(
    classes: Indices, labels: Labels, clients: int, alpha: float, generator: np.random.Generator
) -> Indices:
    """Divide each class by Dirichlet proportions, the same in every split.

    Every client gets at least two training samples (one where the domain has no more): a draw that
    fails this is repeated a few times, and then samples move from the largest clients to the smallest.
    """
    training = np.flatnonzero(labels == Split.TRAIN)
    fewest = 2 if len(training) >= 2 * clients else 1
    owner = np.empty(len(labels), dtype=np.int64)
    for _ in range(DIRICHLET_DRAWS):
        for number in np.unique(classes):
            fractions = generator.dirichlet(np.full(clients, alpha))
            for split in Split:
                rows = generator.permutation(np.flatnonzero((classes == number) & (labels == split)))
                counts = apportion(len(rows), fractions, generator=generator)
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
