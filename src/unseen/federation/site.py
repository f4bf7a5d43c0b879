"""One site's part of a federation, made at the site from its own samples and names alone.

Split and clients of a domain are drawn from generators named after it, so they come out here as they would
where all domains lie side by side.
"""

from __future__ import annotations

import numpy as np

from unseen.data.dataset import DataSet
from unseen.errors import UsageError
from unseen.federation.federation import Federation
from unseen.federation.partition import PartitionPlan, deal
from unseen.federation.split import Split, SplitFractions, split_domain


def site_federation(
    data: DataSet,
    *,
    site: str,
    sources: tuple[str, ...],
    held_out: tuple[str, ...],
    validate_on: tuple[str, ...] = (),
    plan: PartitionPlan,
    fractions: SplitFractions,
    seed: int,
) -> Federation:
    """Deal the site's samples to its own clients; a site that only judges has none."""
    require_separable(plan)
    rows, names = np.zeros(0, dtype=np.int64), list[str]()
    slots = rows
    if site in sources:
        splits = {site: split_domain(data, site, fractions, seed=seed)}
        names, owners = deal(data, plan, splits=splits, seed=seed)
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


def require_separable(plan: PartitionPlan) -> None:
    """Refuse clients that would hold samples of several sites."""
    if plan.kind == "mixed":
        raise UsageError(
            "the partition 'mixed' gives clients samples of several sites, which do not share any"
        )
