"""`RunConfig`: all options of a run as one frozen dataclass, written to `config.toml` with all defaults.

Each field declares its option once: default, help text, panel and choices. The options of `unseen train` and
`unseen bench` are generated from these declarations (cli/options.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from unseen.checksums import read_recorded_toml, with_checksum_line
from unseen.config_options import CLIENTS, DATA, EXECUTION, PROTECTED, TRAINING, option
from unseen.errors import UsageError, unknown_name
from unseen.evaluation.selection import (
    SourceValidation,
    default_rule,
    explain_no_patience,
    needs_validation_domains,
    rule_names,
)
from unseen.fileio import read_toml, to_toml, write_text
from unseen.registry import find_registry
from unseen.run_identity import (
    WHERE,
    hash_values,
    identifying_settings,
    with_later_fields,
    without_later_protection,
)
from unseen.typed_values import check_types

TABLES = (
    "settings",
    "data_settings",
    "schedule_settings",
    "average_settings",
    "aggregate_settings",
    "protect_settings",
)
"""Fields that are TOML tables in the file."""


@dataclass(frozen=True)
class RunConfig:
    """One training run. `None` means: chosen from the data or the method, and recorded once it is."""

    data: str
    hold_out: tuple[str, ...] = option(
        MISSING, "Held-out domain, used for evaluation only (repeatable).", DATA
    )
    sources: tuple[str, ...] = option(
        (), "Train on this domain instead of on all others (repeatable).", DATA, flag="--source"
    )
    validate_on: tuple[str, ...] = option(
        (), "Domain kept out of training to select the round (repeatable).", DATA
    )
    task: str | None = option(
        None, "Task, with its loss and metrics; inferred from the data if not given.", DATA, registry="tasks"
    )
    domain_column: str = option("domain", "Column (or DICOM tag) that names the domain.", DATA)
    target: str = option("target", "Column to predict.", DATA)
    table_statistics: str = option(
        "federated",
        "Tables: scale by federated statistics, or by each domain's own.",
        DATA,
        choices=("federated", "local"),
    )
    image_size: int | None = option(None, "Side of the square images, in pixels.", DATA)
    augment: str | None = option(
        None,
        "Augmentations in training, joined by +, such as standard+mixstyle.",
        DATA,
        registry="augmentations",
    )
    skip_unreadable: bool = option(False, "Skip unreadable image files instead of stopping.", DATA)
    validation: float = option(0.1, "Fraction of each source domain kept for model selection.", DATA)
    test: float = option(0.1, "Fraction of each source domain kept for in-domain accuracy.", DATA)

    image_column: str = option(
        "",
        "Index file (.csv, .parquet): the column with the paths of images; Parquet: the one with the images.",
        DATA,
    )
    group_column: str = option(
        "", "Column or DICOM tag that names a sample's group (patient), which splits keep together.", DATA
    )
    group_pattern: str = option(
        "",
        "Folders: regular expression on file names; what its first parentheses match is the group, which "
        "splits keep together.",
        DATA,
        metavar="REGEX",
    )
    split: str | None = option(
        None,
        "Draw validation and test sample by sample, or by whole groups (default where groups are named).",
        DATA,
        choices=("sample", "group"),
    )
    data_settings: Mapping[str, Any] = option(
        dict,
        "A setting of a named data set, or of medical images (repeatable).",
        DATA,
        flag="--set-data",
        metavar="KEY=VALUE",
    )
    samples_per_domain: int | None = option(
        None, "Use at most this many samples of every domain, the same number of each class.", DATA
    )

    partition: str = option(
        "domain", "How samples are divided among clients.", CLIENTS, registry="partitions"
    )
    clients_per_domain: int = option(1, "Clients that share a domain.", CLIENTS)
    alpha: float = option(0.5, "Dirichlet: small = clients have few classes each.", CLIENTS)
    heterogeneity: float = option(1.0, "Mixed: 1 = one domain per client, 0 = the same mix for all.", CLIENTS)
    fraction: float = option(1.0, "Fraction of the clients that train in a round.", CLIENTS)

    effort: str | None = option(
        None,
        "Strong choices for photographs where options are left open: quick, standard (default), thorough, "
        "or none.",
        TRAINING,
        choices=("quick", "standard", "thorough", "none"),
    )
    method: str = option("fedavg", "Federated method.", TRAINING, registry="methods")
    settings: Mapping[str, Any] = option(
        dict, "A setting of the method (repeatable).", TRAINING, flag="--set", metavar="KEY=VALUE"
    )
    model: str | None = option(None, "Model, also any timm name.", TRAINING, registry="models", checked=False)
    weights: str | None = option(
        None, "Initial weights: auto, imagenet (pretrained or an error), random, or a file.", TRAINING
    )
    train: str | None = option(
        None,
        "Part that is trained: all, last-stage, head, lora, or patterns of tensor names "
        "(body.layer4.*,head.*). In front of last-stage and head the network runs once per image.",
        TRAINING,
    )
    lora_rank: int = option(8, "LoRA: rank r of the corrections.", TRAINING)
    lora_alpha: float = option(16.0, "LoRA: corrections are scaled by alpha / r.", TRAINING)
    lora_average: str = option(
        "frozen-a",
        "LoRA: train B only (exact mean); or average factors, or products.",
        TRAINING,
        choices=("frozen-a", "factors", "products"),
    )
    views: int | None = option(
        None, "Augmented versions of each training image for which the frozen part is cached.", TRAINING
    )
    head: str = option(
        "random",
        "Start of the head: random, in closed form (ridge, class-means), or a CLIP's zero-shot head.",
        TRAINING,
    )
    rounds: int = option(10, "Rounds of local training and aggregation.", TRAINING)
    local_epochs: int = option(1, "Passes over a client's data per round.", TRAINING)
    batches_per_epoch: int | None = option(None, "Make an epoch this many batches.", TRAINING)
    batch_size: int = option(32, "Samples per batch.", TRAINING)
    optimiser: str = option(
        "sgd", "Optimizer of local training.", TRAINING, registry="optimizers", spelling="optimizer"
    )
    lr: float = option(0.01, "Learning rate.", TRAINING)
    schedule: str = option("constant", "Learning rate over the rounds.", TRAINING, registry="schedules")
    schedule_settings: Mapping[str, Any] = option(
        dict, "A setting of the schedule (repeatable).", TRAINING, flag="--set-schedule", metavar="KEY=VALUE"
    )
    schedule_per: str = option(
        "round", "What the schedule counts.", TRAINING, choices=("round", "epoch", "step")
    )
    warmup: float = option(
        0.0,
        "Rounds in which the learning rate rises linearly, before the schedule; below 1: part of all rounds.",
        TRAINING,
    )
    keep_optimizer_state: bool = option(
        False, "Clients continue with the optimizer state of their latest round.", TRAINING
    )
    momentum: float = option(0.9, "Momentum of SGD.", TRAINING)
    weight_decay: float = option(0.0, "Weight decay (L2).", TRAINING)
    clip_norm: float | None = option(None, "Clip every batch's gradient to this norm.", TRAINING)
    head_lr: float = option(1.0, "Factor of the learning rate for the head.", TRAINING)
    sharpness: str = option(
        "none", "Gradient rule that looks for flat minima.", TRAINING, registry="gradient-rules"
    )
    rho: float | None = option(None, "Radius of --sharpness; chosen by the rule if not given.", TRAINING)
    label_smoothing: float = option(0.0, "Label smoothing of the cross-entropy.", TRAINING)
    seed: int = option(0, "Seed; the same seed gives the same weights.", TRAINING)
    evaluate_every: int = option(1, "Rounds between evaluations.", TRAINING)
    evaluate_clients: bool = option(
        False, "Also evaluate each client's own model on every domain, before it is merged.", TRAINING
    )
    calibrate: str = option(
        "temperature",
        "Scaling of the kept model's logits, fitted on the sources' validation samples.",
        TRAINING,
        choices=("temperature", "vector", "none"),
    )
    site_moments: str = option(
        "auto",
        "Sums of the sources' validation features, kept with the model for 'unseen check-site'; auto: where "
        "the model has features and no protection forbids it.",
        TRAINING,
        choices=("auto", "none"),
    )
    selection: str = option(
        SourceValidation.name, "Rule that selects the round.", TRAINING, registry="selection-rules"
    )
    server_lr: float = option(
        1.0, "Step of the server from the global weights towards the new ones.", TRAINING
    )
    average: str = option(
        "none", "Average over rounds that is evaluated and saved.", TRAINING, registry="averages"
    )
    average_settings: Mapping[str, Any] = option(
        dict, "A setting of the average (repeatable).", TRAINING, flag="--set-average", metavar="KEY=VALUE"
    )
    aggregate: str = option(
        "mean",
        "How clients' models are merged; the others than mean bear some lying clients.",
        TRAINING,
        registry="aggregators",
    )
    aggregate_settings: Mapping[str, Any] = option(
        dict,
        "A setting of the aggregator (repeatable).",
        TRAINING,
        flag="--aggregate-set",
        metavar="KEY=VALUE",
    )
    weighting: str = option(
        "method",
        "Weights of clients in averages: by samples, uniform, or as in the method's paper.",
        TRAINING,
        choices=("method", "samples", "uniform"),
    )
    max_weight: float | None = option(
        None, "Largest part of one site in the mean of the clients' models, in (0, 1].", TRAINING
    )
    clip_update: str | None = option(
        None,
        "Shorten clients' steps to this norm; 3x: to 3 times the round's median.",
        TRAINING,
        metavar="NORM",
    )
    patience: int | None = option(
        None, "Stop after this many evaluations without one that the selection rule prefers.", TRAINING
    )
    precision: str = option(
        "float32",
        "Precision of forward passes; auto: bfloat16 where it is faster.",
        TRAINING,
        choices=("float32", "bfloat16", "auto"),
    )
    batch_norm: str = option(
        "train",
        "Batch statistics averaged (train), kept as they start (frozen), or merged as moments (pooled).",
        TRAINING,
        choices=("train", "frozen", "pooled"),
    )
    compile: bool = option(False, "Compile the model with torch.compile.", TRAINING)
    update_dtype: str = option(
        "float32",
        "Round what clients send; 16 bits halve the bytes.",
        TRAINING,
        choices=("float32", "float16", "bfloat16"),
    )

    protect: str = option(
        "none",
        "Protection of updates before they leave a client; two combine with a comma.",
        PROTECTED,
        registry="protections",
        joined=True,
    )
    protect_settings: Mapping[str, Any] = option(
        dict,
        "A setting of the protection (repeatable).",
        PROTECTED,
        flag="--protect-set",
        metavar="KEY=VALUE",
    )

    data_root: str | None = option(None, "Folder of the named data sets.", DATA, envvar="UNSEEN_DATA")
    device: str = option("auto", "auto, cpu, cuda or mps.", EXECUTION)
    workers: int | None = option(None, "Processes that train clients in parallel.", EXECUTION)
    threads: int | None = option(None, "Threads per process.", EXECUTION)
    engine: str = option(
        "local",
        "local: on this machine; flower: at sites that keep their data.",
        EXECUTION,
        choices=("local", "flower"),
    )

    def __post_init__(self) -> None:
        check_types(RunConfig, vars(self))
        unstoppable = explain_no_patience(self.selection)
        checks = {
            f"--rounds must be at least 1, not {self.rounds}": self.rounds >= 1,
            f"--fraction must be in (0, 1], not {self.fraction}": 0 < self.fraction <= 1,
            f"--evaluate-every must be at least 1, not {self.evaluate_every}": self.evaluate_every >= 1,
            f"--server-lr must be above 0, not {self.server_lr}": self.server_lr > 0,
            f"--patience must be at least 1, not {self.patience}": self.patience is None or self.patience > 0,
            f"--patience does not combine with --selection {self.selection}: {unstoppable}": (
                self.patience is None or unstoppable is None
            ),
            f"--threads must be at least 1, not {self.threads}": self.threads is None or self.threads >= 1,
            f"--workers must be at least 1, not {self.workers}": self.workers is None or self.workers >= 1,
            f"--lora-rank must be at least 1, not {self.lora_rank}": self.lora_rank >= 1,
            f"--lora-alpha must be above 0, not {self.lora_alpha}": self.lora_alpha > 0,
            f"--views must be at least 1, not {self.views}": self.views is None or self.views >= 1,
            f"--samples-per-domain must be at least 1, not {self.samples_per_domain}": (
                self.samples_per_domain is None or self.samples_per_domain >= 1
            ),
            "name at least one domain with --hold-out": len(self.hold_out) >= 1,
            f"--selection {self.selection} needs validation domains: name them with --validate-on": (
                len(self.validate_on) >= 1 or not needs_validation_domains(self.selection)
            ),
        }
        for message, fine in checks.items():
            if not fine:
                raise UsageError(message)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunConfig:
        """Build a configuration from a file's or a caller's values; unknown options are refused.

        Without held-out domains, those of the data set's official split are used, if it has one. Validation
        domains select the round unless another rule is named. Where groups are named, by an option or by
        data with several samples of one original, splits are by group unless `split` says otherwise.
        """
        values = recorded_names(values)
        if isinstance(several := values.get("protect"), list | tuple):
            values = {**values, "protect": ",".join(map(str, several))}
        check_types(cls, values)
        domains = {name: _names(values.get(name, ())) for name in ("hold_out", "sources", "validate_on")}
        if not domains["hold_out"]:
            from unseen.data.sources import released_split

            hold_out, validate_on = released_split(str(values.get("data", "")))
            domains |= {"hold_out": hold_out, "validate_on": domains["validate_on"] or validate_on}
        if values.get("split") is None:
            from unseen.data.sources import shows_originals_again

            grouped = bool(
                values.get("group_column")
                or values.get("group_pattern")
                or shows_originals_again(str(values.get("data", "")), values.get("data_settings", {}))
            )
            values = {**values, "split": "group" if grouped else None}
        rule = {"selection": default_rule(validation_domains=bool(domains["validate_on"]))}
        return cls(**{**rule, **values, **domains})

    def check_names(self) -> None:
        """Raise an error for a value that is not among its choices or in its registry."""
        for item in fields(self):
            declared, value = item.metadata.get("option"), getattr(self, item.name)
            if declared is None or value is None:
                continue
            if declared.choices and value not in declared.choices:
                raise unknown_name(item.name.replace("_", " "), value, declared.choices)
            if declared.registry and declared.checked:
                for name in value.split(",") if declared.joined else (value,):
                    find_registry(declared.registry).check(name.strip())
        if self.selection not in rule_names():
            raise unknown_name("selection rule", self.selection, rule_names())

    def resolved(self, **chosen: Any) -> RunConfig:
        """Return a copy with the open choices filled in."""
        return replace(self, **chosen)

    def identity(self, **content: str) -> str:
        """Hash what defines the run (not where it executes), with fingerprints of the content it reads."""
        return hash_values(asdict(self), content)

    def differences(self, other: RunConfig) -> dict[str, tuple[Any, Any]]:
        """Map every identity field in which two configurations differ to both values."""
        mine, theirs = (
            asdict(config)
            | {name: _with_none_spelt(getattr(config, name)) for name in TABLES}
            | {"settings": _with_none_spelt(identifying_settings(config.method, config.settings))}
            | {"protect_settings": without_later_protection(_with_none_spelt(config.protect_settings))}
            for config in (self, other)
        )
        return {
            key: (mine[key], theirs[key]) for key in mine if key not in WHERE and mine[key] != theirs[key]
        }

    def save(self, path: Path) -> None:
        """Write the configuration as TOML with a checksum; None is left out, and is `none` in settings."""
        values = asdict(self)
        tables = {name: _with_none_spelt(values.pop(name)) for name in TABLES}
        shown = {name: table for name, table in tables.items() if table or name == "settings"}
        write_text(path, with_checksum_line(to_toml({**values, **shown})))

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        """Read a configuration from TOML, such as a run's own that was edited."""
        return cls._from_file(path, read_toml(path))

    @classmethod
    def load_recorded(cls, path: Path) -> RunConfig:
        """Read the configuration of a run's folder; what it lacks was added later and changes nothing."""
        return cls._from_file(path, with_later_fields(read_recorded_toml(path), method=cls.method))

    @classmethod
    def _from_file(cls, path: Path, values: Mapping[str, Any]) -> RunConfig:
        try:
            return cls.from_mapping(values)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def recorded_names(values: Mapping[str, Any], *, kind: str = "option") -> dict[str, Any]:
    """Return values under the names that files record, from either spelling; unknown names are refused.

    kind  what the names are, for the message
    """
    known = {
        declared.spelling
        if (declared := item.metadata.get("option")) and declared.spelling
        else item.name: item.name
        for item in fields(RunConfig)
    }
    for name in values:
        if name not in known and name not in known.values():
            raise unknown_name(kind, name, known)
    return {known.get(name, name): value for name, value in values.items()}


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _with_none_spelt(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write None as `none`: TOML has no null, and an omitted setting would get its default."""
    return {key: "none" if value is None else value for key, value in settings.items()}
