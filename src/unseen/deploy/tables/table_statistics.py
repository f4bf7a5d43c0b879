"""The coordinator's side of tables: ask the sites for column sums, and make one encoding from them.

All source sites must answer, or the run does not start: a sum over fewer of them, opened in a second attempt,
would show by subtraction what a protection hides. The sites hold to it themselves (`sums_journal.py`),
whatever run id they are sent: it only names the folder of one exchange's client state.
"""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unseen.callbacks.base import Callback
from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.data.tables.column_statistics import Statistics, means
from unseen.data.tables.encoding import TableEncoding, make_encoding
from unseen.deploy.flower.engine import FlowerEngine
from unseen.deploy.flower.sites import Sites
from unseen.deploy.job import Job, for_sites
from unseen.deploy.tables.column_sums import (
    CENTRES,
    FIRST_PASS,
    SECOND_PASS,
    ColumnSums,
    make_sums_experiment,
)
from unseen.deploy.tables.table_job import load_encoding, save_encoding
from unseen.engine import RoundStart
from unseen.engine.exchange import Exchange
from unseen.errors import UnseenError, UsageError
from unseen.federation import Federation
from unseen.privacy import PROTECTIONS, DisclosureLog, Protection, ReceivedUpdate, make_protection
from unseen.runs.checkpoint import StateStore
from unseen.runs.folder import RunFolder
from unseen.runs.records import Record


class SiteTables:
    """Encodings of the sites' tables; `left` lists what the sites disclosed for one."""

    def __init__(self, sites: Sites, folder: RunFolder, callbacks: Callback) -> None:
        self.sites, self.folder, self.callbacks = sites, folder, callbacks
        self.left: list[Record] = []

    def fit(
        self, config: RunConfig, data: DataSet, federation: Federation, protection: Protection[Any]
    ) -> tuple[TableEncoding, DataSet]:
        """Return the encoding of a run, and its placeholder data as encoded; a resumed run keeps its own."""
        guard, note = choose_protection(protection, data)
        encoding = load_encoding(self.folder.table) if self.folder.holds_run else None
        if encoding is None:
            for line in note:
                self.callbacks.on_note(line)
            encoding = self._ask(config, data, federation, guard)
        width = len(encoding.feature_names)
        encoded = replace(
            data,
            inputs=np.broadcast_to(np.zeros((), dtype=np.float32), (len(data), width)),
            columns=(),
            notes=(*data.notes, encoding.describe_scaling(), *note),
        )
        return encoding, encoded

    def save(self, encoding: TableEncoding | None) -> None:
        """Keep the encoding with the run."""
        if encoding is not None:
            save_encoding(self.folder.table, encoding)

    def _ask(
        self, config: RunConfig, data: DataSet, federation: Federation, guard: Protection[Any]
    ) -> TableEncoding:
        """Ask for the sums in two passes: about zero, then about the means of all rows."""
        asked = config.resolved(
            task=data.task,
            rounds=SECOND_PASS,
            protect=guard.name,
            protect_settings=dict(vars(guard.settings)),
        )
        job = Job(
            config=for_sites(asked),
            run_id=secrets.token_hex(6),
            name=data.name,
            domains=data.domains,
            classes=data.classes,
            sources=federation.sources,
            threads=1,
            columns=data.columns,
        )
        exchange = SumsExchange(self.sites, self.folder, job, data=data, federation=federation, guard=guard)
        first = exchange.run(FIRST_PASS)
        centres = means(first)
        second = exchange.run(SECOND_PASS, {CENTRES: torch.from_numpy(centres)})
        self.left = exchange.left
        scaling = cast(Any, config.table_statistics)
        return make_encoding(data, first, second, centres=centres, statistics=scaling)


def choose_protection(protection: Protection[Any], data: DataSet) -> tuple[Protection[Any], tuple[str, ...]]:
    """Return the protection of the sums and a note where it is not the run's: noise covers training only.

    Whoever asked for sums that nobody can read gets no run in which they are readable.
    """
    reason = protection.incompatibility(ColumnSums(data.columns, exact=protection.seals).traits)
    if reason is None:
        return protection, ()
    guard = next(
        (part for part in getattr(protection, "parts", ()) if part.seals and _adds_up(part, data)), None
    )
    if protection.seals and guard is None:
        raise UsageError(f"--protect {protection.name} does not support tables at sites: {reason}")
    how = f"with --protect {guard.name} alone" if guard else "as they are"
    note = (
        f"sums of table columns leave the sites {how}: the noise of --protect {protection.name} does not "
        "cover them"
    )
    return _alone(guard) if guard else make_protection("none"), (note,)


def _adds_up(protection: Protection[Any], data: DataSet) -> bool:
    return protection.incompatibility(ColumnSums(data.columns, exact=True).traits) is None


def _alone(part: Protection[Any]) -> Protection[Any]:
    """Make a part of a combination by itself, with the settings that are its own."""
    names = [field.name for field in fields(PROTECTIONS[part.name].settings_type())]
    return make_protection(part.name, {name: getattr(part.settings, name) for name in names})


class SumsExchange:
    """The exchange of column sums with all clients; `left` logs what they disclose."""

    def __init__(
        self,
        sites: Sites,
        folder: RunFolder,
        job: Job,
        *,
        data: DataSet,
        federation: Federation,
        guard: Protection[Any],
    ) -> None:
        self.experiment = make_sums_experiment(
            data, federation, guard, columns=data.columns, seed=job.config.seed
        )
        self.engine = FlowerEngine(
            self.experiment,
            StateStore(folder.client_states),
            sites=sites,
            job=job.to_dict(),
            initial_disclosures=(),
            min_sites=0,
        )
        self.state: dict[str, Tensor] = {}
        self.left: list[Record] = []
        self._faults: list[str] = []

    def run(self, number: int, received: dict[str, Tensor] | None = None) -> Statistics:
        """Run one pass; return the sums over all clients."""
        federation, flat = self.experiment.federation, self.engine.workspace.flat
        everyone, weights, left = list(range(len(federation))), flat.read().cpu(), DisclosureLog()
        exchange = Exchange(
            self.experiment,
            self.engine,
            group=everyone,
            round=number,
            weights=weights,
            layout=flat.layout,
            state=self.state,
            left=left,
            fault=self._fault,
        )
        sealing = exchange.begin()
        self._require_all()
        rows, replies = self.engine.train(
            everyone, RoundStart(number, weights, received or {}, sealing=sealing)
        )
        exchange.measure(replies)
        sound = [ReceivedUpdate(each.client, each.update) for each in replies if each.update is not None]
        for reply in replies:
            if reply.update is None or reply.reason:
                self._fault(reply.client, reply.reason)
        self._require_all()
        opened = exchange.finish(rows, replies, sound)
        self._require_all()
        self.left += left.entries(federation.names)
        method = cast(ColumnSums, self.experiment.method)
        return method.merge(opened.updates.extras, rows=int(federation.train_sizes.sum()))

    def _fault(self, client: str, reason: str) -> None:
        self._faults.append(f"{client}: {reason}")

    def _require_all(self) -> None:
        if self._faults:
            raise UnseenError(
                f"the run was not started, it needs column sums of every source site: "
                f"{'; '.join(self._faults)}"
            )
