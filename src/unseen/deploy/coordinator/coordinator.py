"""The coordinator's side of a job: wait for sites, collect their summaries, run on the Flower engine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.callbacks.base import CallbackList, Callbacks
from unseen.config import RunConfig
from unseen.deploy.flower.engine import FlowerEngine
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.flower.sites import Sites
from unseen.deploy.job import Job, config_values, for_sites
from unseen.deploy.safe_names import SAFE_NAME
from unseen.deploy.site_summary import (
    Census,
    SiteSummary,
    census_disclosure,
    data_name,
    make_placeholder_data,
)
from unseen.deploy.tables.table_statistics import SiteTables
from unseen.errors import UnseenError, UsageError
from unseen.federation import require_separable
from unseen.fileio import write_json
from unseen.methods import make_method
from unseen.runner.prepare import Setup, partition_config
from unseen.runner.run import RunResult, run
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder

if TYPE_CHECKING:
    from flwr.serverapp import Grid

SETTLED_SECONDS = 5.0
"""If a job names no sources, all connected sites take part once no new one has connected for this long."""


@dataclass(frozen=True)
class RoundPolicy:
    """Deadline for the sites' answers, and how many are needed.

    deadline   seconds within which a site must answer, and must connect at the start
    min_sites  usable updates that a round needs to count
    """

    deadline: float = 3600.0
    min_sites: int = 1

    def __post_init__(self) -> None:
        if self.deadline <= 0:
            raise UsageError(f"--round-deadline must be above 0 seconds, not {self.deadline:g}")
        if self.min_sites < 1:
            raise UsageError(f"--min-sites must be at least 1, not {self.min_sites}")


def coordinate(
    grid: Grid,
    config: RunConfig,
    *,
    out: Path,
    resume: bool,
    terms: RoundPolicy,
    callbacks: Callbacks = None,
    names: Mapping[str, str] | None = None,
) -> RunResult:
    """Run (or resume) a job with the sites that Flower connects; `names` as in `SuperLinkConnection`."""
    method = make_method(config.method, config.settings)
    if method.topology == "pooled":
        raise UsageError(
            f"method {config.method!r} pools all data in one place, but on Flower data stays at the sites"
        )
    if method.domains_per_client > 1:
        raise UsageError(
            f"{method.name} compares the domains within a client, but a site holds a single one: use "
            "--engine local --partition mixed, or another --method"
        )
    require_separable(partition_config(config))
    if config.precision == "auto":
        config = config.resolved(precision="float32")  # the sites' processors are not known
    folder = RunFolder(out)
    known = _read(folder) if resume else None
    following = CallbackList(callbacks)
    gathering = SiteCollector(grid, config, terms, following, known=known, names=names or {})
    census = gathering.census()
    tables = SiteTables(gathering.sites, folder, following)

    def engine(setup: Setup, states: StateStore) -> FlowerEngine:
        write_json(folder.sites, {site: facts.to_dict() for site, facts in census.items()})
        tables.save(setup.encoding)
        return FlowerEngine(
            setup.experiment,
            states,
            sites=gathering.sites,
            job=Job.of(setup).to_dict(),
            initial_disclosures=[*census_disclosure(census), *tables.left],
            min_sites=terms.min_sites,
        )

    data = make_placeholder_data(census, name=data_name(config.data))
    return run(
        config,
        out=out,
        resume=resume,
        callbacks=following,
        data=data,
        engine=engine,
        fit_table=tables.fit,
    )


class SiteCollector:
    """Collects the sites' summaries at the start of a run, and decides about sites that connect later."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        terms: RoundPolicy,
        callback: CallbackList,
        *,
        known: Census | None,
        names: Mapping[str, str],
    ) -> None:
        self.config, self.terms, self.callback, self.known = config, terms, callback, known
        self.found: Census = {}
        self.sites = Sites(
            grid,
            census=SiteMessage({"config": config_values(for_sites(config))}),
            deadline=terms.deadline,
            welcome=self.welcome,
            names=names,
        )

    def census(self) -> Census:
        """Wait for the job's sites, then fix the participants; a resumed run keeps its participants."""
        outside = {*self.config.hold_out, *self.config.validate_on}
        wanted = set(self.known or (*outside, *self.config.sources))
        if self.known:
            self.sites.greet()
            return self.known
        until, quiet_since = time.monotonic() + self.terms.deadline, time.monotonic()
        while True:
            before = set(self.found)
            self.sites.greet()
            if set(self.found) != before:
                quiet_since = time.monotonic()
            missing = wanted - set(self.found)
            sources = set(self.found) - outside
            self.callback.on_prepare("sites", len(wanted - missing), len(wanted))
            settled = self.config.sources or time.monotonic() - quiet_since > SETTLED_SECONDS
            if not missing and settled and len(sources) >= max(self.terms.min_sites, 1):
                self.known = dict(self.found)
                for reason in self.sites.turned_away.values():
                    self.callback.on_note(f"starts without a site that was refused: {reason}")
                return self.known
            if time.monotonic() > until:
                here = ", ".join(sorted(self.found)) or "none"
                lacking = ", ".join(sorted(missing)) or "a source domain"
                raise UnseenError(
                    f"waited {self.terms.deadline:g} s for sites; connected: {here}; missing: {lacking}"
                    f"{self.sites.complaints()}"
                )
            time.sleep(0.5)

    def welcome(self, site: str, summary: dict[str, Any]) -> str | None:
        """Accept a site (None) or return the reason; after the start only known sites with the same data."""
        if not SAFE_NAME.fullmatch(site):
            return "has no usable name; expected letters, digits, and . _ - after the first"
        try:
            said = SiteSummary.from_dict(summary)
        except UnseenError as error:
            return str(error)
        if summary.get("confirms") is True:
            self.callback.on_note(f"{site} runs a job only after a person there has approved it")
        if self.known is None:
            self.found[site] = said
            return None
        if site not in self.known:
            return "connected after the run had started"
        if self.known[site].fingerprint != said.fingerprint:
            return "its data has changed since the run started"
        return None


def _read(folder: RunFolder) -> Census | None:
    """Read the participants of the run to resume."""
    if not folder.sites.exists():
        return None
    values = json.loads(folder.sites.read_text(encoding="utf-8"))
    return {site: SiteSummary.from_dict(facts) for site, facts in values.items()}
