"""Splits of the domains, their partition into clients, and the clients sampled in a round."""

from unseen.federation.federation import (
    Client,
    Federation,
    clients_per_round,
    make_federation,
    sample_clients,
    site_federation,
)
from unseen.federation.partition import PARTITIONS, PartitionConfig, require_separable
from unseen.federation.split import Split, SplitFractions, split_domain

__all__ = [
    "PARTITIONS",
    "Client",
    "Federation",
    "PartitionConfig",
    "Split",
    "SplitFractions",
    "clients_per_round",
    "make_federation",
    "require_separable",
    "sample_clients",
    "site_federation",
    "split_domain",
]
