"""Identity of a run: the hash of what defines its result, and of nothing else.

A run made by an older version keeps its identity: later additions count only where they change something.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unseen.hparams import Settings, with_later_settings, without_later_settings
from unseen.registry import find_registry

WHERE = ("data_root", "device", "workers", "threads", "engine", "effort")
"""Fields that say where a run executes, and the effort, whose choices are fields of their own: they are not
part of a run's identity."""
PROTECTION = ("protect", "protect_settings")
"""Fields about protection; a run without protection keeps the identity from before they existed."""
LATER: dict[str, Any] = {
    "update_dtype": "float32",
    "schedule": "constant",
    "schedule_settings": {},
    "train": "all",
    "lora_rank": 8,
    "lora_alpha": 16.0,
    "lora_average": "frozen-a",
    "batch_norm": "train",
    "schedule_per": "round",
    "warmup": 0.0,
    "clip_norm": None,
    "head_lr": 1.0,
    "sharpness": "none",
    "rho": None,
    "server_lr": 1.0,
    "average": "none",
    "average_settings": {},
    "patience": None,
    "views": None,
    "head": "random",
    "aggregate": "mean",
    "aggregate_settings": {},
    "max_weight": None,
    "clip_update": None,
    "weighting": "method",
    "keep_optimizer_state": False,
    "split": "sample",
    "image_column": "",
    "group_column": "",
    "group_pattern": "",
    "samples_per_domain": None,
    "data_settings": {},
    "evaluate_clients": False,
    "calibrate": "temperature",
    "site_moments": "auto",
}
"""Fields that were added later: at these values they leave a run's identity as it was without them."""
LATER_PROTECTION: dict[str, Any] = {"batch_seed": "secret"}
"""Settings of protections that were added later: at these values they leave a run's identity as it was."""


def hash_values(values: Mapping[str, Any], content: Mapping[str, str]) -> str:
    """Hash the fields of a configuration that define the run, with fingerprints of the content it reads.

    values   every field of a `RunConfig` by its name
    content  fingerprints of data and weights
    """
    what = {key: value for key, value in values.items() if key not in WHERE}
    if not values["validate_on"]:
        del what["validate_on"]  # keeps the identity of runs made before this field existed
    if values["protect"] == "none":
        what = {key: value for key, value in what.items() if key not in PROTECTION}
    else:
        what["protect_settings"] = without_later_protection(values["protect_settings"])
    what["settings"] = identifying_settings(values["method"], values["settings"])
    what = {key: value for key, value in what.items() if key not in LATER or value not in (LATER[key], None)}
    if "weighting" in what and what["weighting"] == values["settings"].get("weighting"):
        del what["weighting"]  # the setting of the method says the same
    what["data"] = Path(values["data"]).name
    what["weights"] = None if values["weights"] is None else Path(values["weights"]).name
    text = json.dumps({**what, **content}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def identifying_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's settings without those that leave an old run what it was."""
    return without_later_settings(_settings_type(method), settings) if settings else {}


def without_later_protection(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings of a protection that were added later and have their first value."""
    return {
        key: value
        for key, value in settings.items()
        if key not in LATER_PROTECTION or value != LATER_PROTECTION[key]
    }


def with_later_fields(recorded: Mapping[str, Any], *, method: str) -> dict[str, Any]:
    """Add what the record of an older version lacks, at the values that change nothing.

    method  the method where the record names none
    """
    values = {**LATER, **recorded}
    if isinstance(settings := values.get("settings"), Mapping) and settings:
        kind = _settings_type(str(values.get("method", method)))
        values["settings"] = with_later_settings(kind, settings)
    return values


def _settings_type(method: str) -> type[Settings]:
    """Return the settings of a method by its name; none for an unknown one, which is refused elsewhere."""
    methods = find_registry("methods")
    kind: type[Settings] = methods[method].settings_type() if method in methods else Settings
    return kind
