"""The job as sent to sites: the resolved configuration, and facts that no single site knows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unseen.config import RunConfig
from unseen.data.dataset import Column
from unseen.data.tables.encoding import TableEncoding
from unseen.deploy.safe_names import require_safe_name
from unseen.deploy.tables.table_job import read_columns, read_encoding
from unseen.models.freezing import frozen_names
from unseen.run_identity import WHERE
from unseen.runner.prepare import Setup


@dataclass(frozen=True)
class Job:
    """What a site needs, in addition to its own samples, to build its part of the experiment.

    run_id   names the folder of the site's client state
    threads  the same at every site, because the order of summation depends on it
    weights  SHA-256 of the pretrained weights that a site must find by itself, because the frozen part of the
             network is not sent; empty if all of it is
    columns  of a table, whose sums are exchanged before the run (see `column_sums.py`); empty in training
    encoding of a table, made from those sums; None for images
    """

    config: RunConfig
    run_id: str
    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    sources: tuple[str, ...]
    threads: int
    weights: str = ""
    columns: tuple[Column, ...] = ()
    encoding: TableEncoding | None = None

    @classmethod
    def of(cls, setup: Setup) -> Job:
        """Create the job from the coordinator's prepared run."""
        data, federation = setup.experiment.data, setup.experiment.federation
        partial = setup.experiment.whole is not None or frozen_names(setup.experiment.network)
        weights = setup.weights if partial else ""
        return cls(
            config=for_sites(setup.config, needs_weights=bool(weights)),
            run_id=setup.run_id,
            name=data.name,
            domains=data.domains,
            classes=data.classes,
            sources=federation.sources,
            threads=setup.workers.threads,
            weights=weights,
            encoding=setup.encoding,
        )

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything in the job but where it executes, which may change when a run is resumed."""
        values = self.to_dict()
        values["config"] = {key: value for key, value in values["config"].items() if key not in WHERE}
        del values["threads"]
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).digest()

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values; what concerns tables only where there is one."""
        values = {**asdict(self), "config": config_values(self.config)}
        return {key: value for key, value in values.items() if value or key not in ("columns", "encoding")}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Job:
        """Read a job from JSON values; unknown keys are ignored."""
        names = {key: tuple(values[key]) for key in ("domains", "classes", "sources")}
        described = values.get("encoding")
        return cls(
            config=RunConfig.from_mapping(values["config"]),
            run_id=require_safe_name(values["run_id"], "a run"),
            name=str(values["name"]),
            threads=int(values["threads"]),
            weights=str(values.get("weights", "")),
            columns=read_columns(values.get("columns", [])),
            encoding=None if described is None else read_encoding(described),
            **names,
        )


def config_values(config: RunConfig) -> dict[str, Any]:
    """Convert a configuration to JSON values, without unset fields."""
    values = {key: value for key, value in asdict(config).items() if value is not None}
    return values | {"settings": dict(config.settings), "protect_settings": dict(config.protect_settings)}


def for_sites(config: RunConfig, *, needs_weights: bool = False) -> RunConfig:
    """Drop what concerns the coordinator's machine only; sites receive trained weights by message.

    needs_weights  keep the name of the pretrained weights, for sites that find them by themselves
    """
    weights = Path(config.weights).name if needs_weights and config.weights else None
    return config.resolved(weights=weights, data_root=None, data="", workers=1)
