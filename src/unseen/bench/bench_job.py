"""One job of a bench: an ordinary run, named by the hash of its configuration.

The same configuration always has the same name, however it was written, so a finished job is found again and
never repeated, also by another grid in the same folder and by later versions of the package with more
options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from unseen.aggregation import AGGREGATORS, AVERAGES, make_aggregator, make_average
from unseen.config import RunConfig
from unseen.data.sources import changed_data_settings
from unseen.hparams import Settings, unstated_settings
from unseen.methods import METHODS, make_method
from unseen.privacy import make_protection, protection_type
from unseen.run_identity import LATER, WHERE
from unseen.runner.prepare import data_request
from unseen.training.schedules import SCHEDULES, make_schedule

RELEASED = "released"
"""In place of a held-out domain: all domains that the data's release reserves for testing."""
_FLOATS = {item.name for item in fields(RunConfig) if isinstance(item.default, float)}


@dataclass(frozen=True)
class BenchJob:
    """A run and its position in the grid.

    label     the method as the grid names it
    held_out  the domain whose accuracy the job measures, or `released`
    model     as the grid names it; empty if inferred from the data
    left_out  the source domain that is held out too, in runs of leave-one-domain-out cross-validation
    trial     the number of the trial, in runs of a search
    """

    label: str
    held_out: str
    seed: int
    model: str
    config: RunConfig
    left_out: str | None = None
    trial: int | None = None

    @cached_property
    def id(self) -> str:
        """Hash of the configuration's non-default values that define what is run (not where)."""
        what = {
            item.name: value
            for item in fields(RunConfig)
            if (value := getattr(self.config, item.name)) not in (item.default, {}) and item.name not in WHERE
        }
        config = self.config
        tables = {
            "schedule_settings": _non_default(config.schedule_settings, SCHEDULES[config.schedule]),
            "average_settings": _non_default(config.average_settings, AVERAGES[config.average]),
            "aggregate_settings": _non_default(config.aggregate_settings, AGGREGATORS[config.aggregate]),
            "protect_settings": _non_default(
                config.protect_settings, protection_type(config.protect).settings_type()
            ),
        }
        what = {name: value for name, value in what.items() if name not in tables}
        if config.split == LATER["split"]:
            del what["split"]  # keeps the name of jobs from before splits by group
        what |= {name: table for name, table in tables.items() if table}
        what["settings"] = _non_default(config.settings, METHODS[config.method].settings_type())
        if "weighting" in what and what["weighting"] == config.settings.get("weighting"):
            del what["weighting"]  # the setting of the method says the same
        what |= {name: Path(what[name]).name for name in ("data", "weights") if name in what}
        text = json.dumps({**what, "method": config.method}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """A readable name for progress lines and tables."""
        parts = [self.label, self.held_out, *([f"without {self.left_out}"] if self.left_out else [])]
        parts += [f"trial {self.trial}"] if self.trial is not None else []
        return " ".join([*parts, *([self.model] if self.model else []), f"seed {self.seed}"])

    def folder(self, work: Path) -> Path:
        """Return the job's run folder below the folder of all jobs."""
        return work / self.id


def _non_default(given: Mapping[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Return the settings that an identity states: those that differ from their first defaults."""
    unstated = unstated_settings(kind)
    return {name: value for name, value in given.items() if name in unstated and value != unstated[name]}


def job_config(values: Mapping[str, Any]) -> RunConfig:
    """Make a configuration in canonical form: every setting of the method filled in, 1 written as 1.0.

    Domains are sorted by name, since their order does not affect training.
    """
    exact = {key: float(value) if key in _FLOATS else value for key, value in values.items()}
    config = RunConfig.from_mapping(exact)
    settings = vars(make_method(config.method, config.settings, weighting=config.weighting).settings)
    return config.resolved(
        settings=dict(settings),
        data_settings=changed_data_settings(data_request(config)),
        schedule_settings=dict(vars(make_schedule(config.schedule, config.schedule_settings))),
        average_settings=dict(vars(make_average(config.average, config.average_settings))),
        aggregate_settings=dict(vars(make_aggregator(config.aggregate, config.aggregate_settings))),
        protect_settings=dict(vars(make_protection(config.protect, config.protect_settings).settings)),
        hold_out=tuple(sorted(config.hold_out)),
        sources=tuple(sorted(config.sources)),
        validate_on=tuple(sorted(config.validate_on)),
    )
