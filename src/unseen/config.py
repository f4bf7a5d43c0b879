"""Everything a run depends on, as one frozen value; what it resolves to is written to `config.toml`.

Fields under "where" say on what machine and with how many hands; they do not change the run's identity.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unseen.data.sources import released_split
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.evaluation.selection import SourceValidation, default_rule, needs_validation_domains
from unseen.fileio import write_text

WHERE = ("data_root", "device", "workers", "threads", "engine")
"""Fields that say where a run happens, not what it is."""
PROTECTION = ("protect", "protect_settings")
"""Fields that say how updates are protected; runs without protection keep the identity they always had."""
TABLES = ("settings", "schedule_settings", "protect_settings")
"""Fields that are tables of their own in the file."""
LATER: dict[str, Any] = {"update_dtype": "float32", "schedule": "constant", "schedule_settings": {}}
"""Fields that came later: at these values they leave a run's identity as it was without them."""


@dataclass(frozen=True)
class RunConfig:
    """One training run. `None` means: chosen from the data or the method, and then written down."""

    # what is learnt
    data: str
    hold_out: tuple[str, ...]
    sources: tuple[str, ...] = ()
    validate_on: tuple[str, ...] = ()
    task: str | None = None
    domain_column: str = "domain"
    target: str = "target"
    table_statistics: str = "federated"
    image_size: int | None = None
    augment: str | None = None
    skip_unreadable: bool = False
    validation: float = 0.1
    test: float = 0.1
    # who holds it
    partition: str = "domain"
    clients_per_domain: int = 1
    alpha: float = 0.5
    heterogeneity: float = 1.0
    fraction: float = 1.0
    # how it is learnt
    method: str = "fedavg"
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    weights: str | None = None
    rounds: int = 10
    local_epochs: int = 1
    batches_per_epoch: int | None = None
    batch_size: int = 32
    optimiser: str = "sgd"
    lr: float = 0.01
    schedule: str = "constant"
    schedule_settings: Mapping[str, Any] = field(default_factory=dict)
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    seed: int = 0
    evaluate_every: int = 1
    selection: str = SourceValidation.name
    precision: str = "float32"
    compile: bool = False
    update_dtype: str = "float32"
    # how it is protected
    protect: str = "none"
    protect_settings: Mapping[str, Any] = field(default_factory=dict)
    # where
    data_root: str | None = None
    device: str = "auto"
    workers: int | None = None
    threads: int | None = None
    engine: str = "local"

    def __post_init__(self) -> None:
        checks = {
            f"--rounds must be at least 1, not {self.rounds}": self.rounds >= 1,
            f"--fraction must lie in (0, 1], not {self.fraction}": 0 < self.fraction <= 1,
            f"--evaluate-every must be at least 1, not {self.evaluate_every}": self.evaluate_every >= 1,
            f"--threads must be at least 1, not {self.threads}": self.threads is None or self.threads >= 1,
            f"--workers must be at least 1, not {self.workers}": self.workers is None or self.workers >= 1,
            "name at least one domain with --hold-out": len(self.hold_out) >= 1,
            f"--selection {self.selection} needs domains to choose by: name them with --validate-on": (
                len(self.validate_on) >= 1 or not needs_validation_domains(self.selection)
            ),
        }
        for message, fine in checks.items():
            if not fine:
                raise UsageError(message)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Build a configuration from a file's or a caller's values; unknown names are refused.

        Where no domain is held out, those of the release are, if it has a split of its own. Validation
        domains choose the round unless the caller names another rule.
        """
        known = {item.name for item in fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_name("option", name, known)
        domains = {name: _names(values.get(name, ())) for name in ("hold_out", "sources", "validate_on")}
        if not domains["hold_out"]:
            hold_out, validate_on = released_split(str(values.get("data", "")))
            domains |= {"hold_out": hold_out, "validate_on": domains["validate_on"] or validate_on}
        rule = {"selection": default_rule(validation_domains=bool(domains["validate_on"]))}
        return cls(**{**rule, **values, **domains})

    def resolved(self, **chosen: Any) -> RunConfig:
        """Fill in what was left open."""
        return replace(self, **chosen)

    def identity(self, **content: str) -> str:
        """Hash what the run is (not where it runs), with fingerprints of the content it reads."""
        what = {key: value for key, value in asdict(self).items() if key not in WHERE}
        if not self.validate_on:
            del what["validate_on"]  # keeps the identity of runs from before there was the field
        if self.protect == "none":
            what = {key: value for key, value in what.items() if key not in PROTECTION}
        what = {key: value for key, value in what.items() if key not in LATER or value != LATER[key]}
        what["data"] = Path(self.data).name
        what["weights"] = None if self.weights is None else Path(self.weights).name
        text = json.dumps({**what, **content}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def differences(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """List the fields that say what a run is and in which two configurations differ."""
        mine, theirs = (
            asdict(config) | {name: _with_none_spelt(getattr(config, name)) for name in TABLES}
            for config in (self, other)
        )
        return {
            key: (mine[key], theirs[key]) for key in mine if key not in WHERE and mine[key] != theirs[key]
        }

    def save(self, path: Path) -> None:
        """Write the configuration as TOML; None is left out, and of a setting spelt `none`."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        tables = {name: values.pop(name) for name in TABLES}
        lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
        for name, table in tables.items():
            if name == "settings" or table:
                lines += ["", f"[{name}]"]
                lines += [f"{key} = {_toml(value)}" for key, value in _with_none_spelt(table).items()]
        write_text(path, "\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Read a configuration from TOML."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UnseenError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UnseenError(f"{path} is not a TOML file: {error}") from error
        return cls.from_mapping(values)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _with_none_spelt(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write None as a user would, `none`: TOML knows no null, and a setting left out would be its default."""
    return {key: "none" if value is None else value for key, value in settings.items()}


def _toml(value: Any) -> str:
    """Write a plain value as TOML (JSON's strings, numbers and lists of them are TOML too)."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
