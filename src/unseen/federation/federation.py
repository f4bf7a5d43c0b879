"""The clients of a run, and the domains that none of them may see.

All clients are stored in compressed form, one array of sample numbers and one of offsets, so that 100,000
clients cost little more than the numbers of their samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import DataSet, Indices
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.federation.partition import PartitionConfig, assign_clients, require_separable
from unseen.federation.split import Split, SplitFractions, split_domain
from unseen.seeding import numpy_generator


@dataclass(frozen=True)
class Client:
    """One client: the numbers of its samples in the data set, by split."""

    name: str
    domains: tuple[str, ...]
    train: Indices
    validation: Indices
    test: Indices


class Federation:
    """All clients, ordered by domain and number; `federation[k]` builds one on demand."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        rows: Indices,
        slots: Indices,
        domain_of: Indices,
        domains: tuple[str, ...],
        held_out: tuple[str, ...],
        sources: tuple[str, ...],
        validate_on: tuple[str, ...] = (),
    ) -> None:
        """Take each row's slot: three times the position of its client, plus its split."""
        self.names = tuple(names)
        self.held_out = held_out
        self.validate_on = validate_on
        self.sources = sources
        self._domain_of = domain_of
        self._domains = domains
        self._rows = rows[np.lexsort((rows, slots))]
        sizes = np.bincount(slots, minlength=len(Split) * len(self.names))
        self._offsets: Indices = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, position: int) -> Client:
        if not -len(self) <= position < len(self):
            raise IndexError(f"client {position} of {len(self)}")
        first = len(Split) * (position % len(self))
        cuts = self._offsets[first : first + len(Split) + 1]
        train, validation, test = (self._rows[cuts[split] : cuts[split + 1]].copy() for split in Split)
        present = np.flatnonzero(np.bincount(self._domain_of[self._rows[cuts[0] : cuts[-1]]]))
        domains = tuple(self._domains[number] for number in present)
        return Client(self.names[position], domains, train, validation, test)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def position(self, name: str) -> int:
        """Find a client by name."""
        if name not in self._positions:
            raise unknown_name("client", name, self.names)
        return self._positions[name]

    @property
    def train_sizes(self) -> npt.NDArray[np.int64]:
        """Number of training samples of each client."""
        first = len(Split) * np.arange(len(self)) + Split.TRAIN
        sizes: Indices = self._offsets[first + 1] - self._offsets[first]
        return sizes

    def target_indices(self, domain: str) -> Indices:
        """Return all samples of a held-out domain, and of no other."""
        if domain not in self.held_out:
            raise unknown_name("held-out domain", domain, self.held_out)
        return np.flatnonzero(self._domain_of == self._domains.index(domain))

    def validation_indices(self, domain: str) -> Indices:
        """Return all samples of a validation domain, which no client holds."""
        if domain not in self.validate_on:
            raise unknown_name("validation domain", domain, self.validate_on)
        return np.flatnonzero(self._domain_of == self._domains.index(domain))

    def split_indices(self, split: Split, domain: str) -> Indices:
        """Return a source domain's samples of one split over all clients, the same for every partition."""
        if domain not in self.sources:
            raise unknown_name("source domain", domain, self.sources)
        rows = self._rows[self._splits == split]
        return np.sort(rows[self._domain_of[rows] == self._domains.index(domain)])

    @property
    def _splits(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self._offsets) - 1) % len(Split), np.diff(self._offsets))

    def pool(self) -> Federation:
        """Assign all samples to one client "all": training as if the data could be pooled."""
        return Federation(
            names=("all",),
            rows=self._rows,
            slots=self._splits,
            domain_of=self._domain_of,
            domains=self._domains,
            held_out=self.held_out,
            sources=self.sources,
            validate_on=self.validate_on,
        )


def make_federation(
    data: DataSet,
    *,
    held_out: tuple[str, ...],
    partition: PartitionConfig,
    fractions: SplitFractions,
    seed: int,
    among: tuple[str, ...] = (),
    validate_on: tuple[str, ...] = (),
) -> Federation:
    """Split every source domain and assign it to clients; none of them gets held-out samples.

    among        the only domains used, apart from the held-out ones; empty = all
    validate_on  domains that no client holds either, kept for model selection
    """
    held_out, validate_on = (tuple(dict.fromkeys(names)) for names in (held_out, validate_on))
    sources = data.require_hold_out(held_out, among, validate_on)
    _require_learnable(data, (*held_out, *validate_on), sources)
    splits = {domain: split_domain(data, domain, fractions, seed=seed) for domain in sources}
    for domain, labels in splits.items():
        if not len(labels):
            raise UsageError(f"domain {domain!r} of {data.name} has no samples; remove it or add some")
    if fractions.by_group:
        _require_parts(splits, fractions)
    names, owners = assign_clients(data, partition, splits=splits, seed=seed)
    return Federation(
        names=names,
        rows=np.concatenate([data.indices(domain) for domain in sources]),
        slots=np.concatenate([len(Split) * owners[domain] + splits[domain] for domain in sources]),
        domain_of=data.domain_of,
        domains=data.domains,
        held_out=held_out,
        sources=sources,
        validate_on=validate_on,
    )


def _require_parts(splits: Mapping[str, npt.NDArray[np.int8]], fractions: SplitFractions) -> None:
    """Refuse a split by group in which a part that was asked for has no sample in any domain."""
    for split, fraction in ((Split.VALIDATION, fractions.validation), (Split.TEST, fractions.test)):
        if fraction and not any((labels == split).any() for labels in splits.values()):
            name = split.name.lower()
            raise UsageError(
                f"no group of any source domain falls in the {name} part: too few groups for "
                f"--{name} {fraction:g}; raise it, choose another --seed, or use --split sample"
            )


def _require_learnable(data: DataSet, held_out: tuple[str, ...], sources: tuple[str, ...]) -> None:
    """Refuse a class that no source domain has."""
    counts = data.class_counts()
    for domain in held_out:
        for name, count in counts.get(domain, {}).items():
            if count and not any(counts[source][name] for source in sources):
                raise UnseenError(
                    f"class {name!r} of the held-out domain {domain!r} ({count} samples) occurs in no source "
                    "domain, so it cannot be learned; remove those samples or add the class to a source"
                )


def site_federation(
    data: DataSet,
    *,
    site: str,
    sources: tuple[str, ...],
    held_out: tuple[str, ...],
    validate_on: tuple[str, ...] = (),
    partition: PartitionConfig,
    fractions: SplitFractions,
    seed: int,
) -> Federation:
    """Assign the site's samples to its clients; a site that only evaluates has none."""
    require_separable(partition)
    rows, names = np.zeros(0, dtype=np.int64), list[str]()
    slots = rows
    if site in sources:
        splits = {site: split_domain(data, site, fractions, seed=seed)}
        names, owners = assign_clients(data, partition, splits=splits, seed=seed)
        rows = data.indices(site)
        slots = len(Split) * owners[site] + splits[site]
    return Federation(
        names=names,
        rows=rows,
        slots=slots,
        domain_of=data.domain_of,
        domains=data.domains,
        held_out=held_out,
        sources=sources,
        validate_on=validate_on,
    )


def clients_per_round(clients: int, fraction: float) -> int:
    """Compute the number of clients per round: ceil(fraction * clients), at least one."""
    if not 0 < fraction <= 1:
        raise UsageError(f"fraction of clients {fraction} is impossible; use a number above 0 up to 1")
    return max(1, math.ceil(fraction * clients - 1e-9))


def sample_clients(
    federation: Federation, *, fraction: float, round: int, seed: int
) -> npt.NDArray[np.int64]:
    """Draw the round's clients, as sorted positions."""
    count = clients_per_round(len(federation), fraction)
    drawn = numpy_generator(seed, "participation", round).choice(len(federation), size=count, replace=False)
    return np.sort(drawn).astype(np.int64)
