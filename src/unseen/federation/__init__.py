"""Who holds what: the split of every domain, its clients, and who takes part in a round."""

from unseen.federation.federation import Client, Federation, make_federation
from unseen.federation.participation import participant_count, participants
from unseen.federation.partition import PARTITIONS, PartitionPlan
from unseen.federation.site import require_separable, site_federation
from unseen.federation.split import Split, SplitFractions, split_domain

__all__ = [
    "PARTITIONS",
    "Client",
    "Federation",
    "PartitionPlan",
    "Split",
    "SplitFractions",
    "make_federation",
    "participant_count",
    "participants",
    "require_separable",
    "site_federation",
    "split_domain",
]
