"""Prepare a run: load the data, split it among clients, build model, method and protection, each once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from unseen.aggregation import make_average
from unseen.config import RunConfig
from unseen.data import DataRequest, DataSet, load_data
from unseen.data.sources import Progress, changed_data_settings, no_progress, resolve_data_root
from unseen.devices import choose_device
from unseen.engine import Experiment, WorkerConfig, choose_workers
from unseen.errors import UnseenError, UsageError
from unseen.federation import (
    Federation,
    PartitionConfig,
    SplitFractions,
    clients_per_round,
    make_federation,
)
from unseen.federation.split import fingerprint_groups
from unseen.methods import METHODS, make_method
from unseen.methods.base import Method
from unseen.methods.closed_form import make_starting_head
from unseen.models.weight_sources import InitialWeights, find_initial_weights
from unseen.privacy import PlannedRun, Protection, make_protection
from unseen.runner.augmentation_checks import check_augmentation, default_augmentation
from unseen.runner.experiment_setup import averages_products, local_plan, make_experiment
from unseen.runner.merging_checks import check_circulating, check_merging, check_weighting
from unseen.training import (
    GRADIENT_RULES,
    check_precision,
)

if TYPE_CHECKING:
    from unseen.data.tables.encoding import TableEncoding

TableFitter = Callable[[RunConfig, DataSet, Federation, Protection[Any]], tuple["TableEncoding", DataSet]]
"""Fits the encoding of a raw table, and returns it with the encoded data."""
SMALLEST_DEFAULT_BATCH = 4
"""The default batch size is lowered down to here for clients with few samples; smaller ones must be named."""


@dataclass(frozen=True)
class Setup:
    """A configuration with every choice made, its experiment, and the run's identity.

    workers      worker processes and threads on this machine
    max_clients  the largest number of clients in a round
    notes        information for the user before the run starts: its pretrained weights, the protection's cost
    weights      fingerprint of the weights file; empty for random weights
    """

    config: RunConfig
    experiment: Experiment
    encoding: TableEncoding | None
    workers: WorkerConfig
    run_id: str
    max_clients: int
    notes: tuple[str, ...] = ()
    weights: str = ""


def prepare_run(
    config: RunConfig,
    *,
    data: DataSet | None = None,
    progress: Progress = no_progress,
    fit_table: TableFitter | None = None,
) -> Setup:
    """Resolve a configuration into everything that a run needs.

    Cheap checks come first, so that a wrong name is reported before any data is decoded.

    data      samples already in memory, in place of those that the configuration names
    progress  called while data is being loaded
    fit_table fits the encoding of a table whose rows are elsewhere
    """
    method, protection = check_names(config)
    asked, config = config.rounds, _cap_rounds(config, method)
    device = choose_device(config.device)
    check_precision(config.precision, device)
    data = (data or load_data(data_request(config, progress))).as_task(config.task)
    if len(data.domains) < 2:
        raise UnseenError(
            f"{data.name} has one domain only ({data.domains[0]}); hold one out and train on others: "
            "at least two are needed"
        )
    data.require_hold_out(config.hold_out, config.sources, config.validate_on)
    config = _choose_split(config, data)
    federation = make_federation(
        data,
        held_out=config.hold_out,
        among=config.sources,
        validate_on=config.validate_on,
        partition=partition_config(config),
        fractions=split_fractions(config),
        seed=config.seed,
    )
    if method.topology == "pooled":
        federation = federation.pool()
    _require_domains(method, data, federation)
    encoding = None
    if data.columns:
        encoding, data = (fit_table or fit_own_table)(config, data, federation, protection)
    config, batch_notes = _fit_batch_size(config, federation)
    check_augmentation(config, data, method)

    config = config.resolved(
        task=data.task,
        data_settings=changed_data_settings(data_request(config)),
        model=config.model or _default_model(data, method),
        augment=config.augment or default_augmentation(data, method),
        image_size=data.input_shape[-1] if data.is_image else None,
        train=config.train or (data.is_image and method.default_train) or "all",
        rho=GRADIENT_RULES[config.sharpness].radius(config.rho),
        settings=dict(vars(method.settings)),
        protect=protection.name,
        protect_settings=dict(vars(protection.settings)),
    )
    weights = initial_weights(config, data, progress)
    config = config.resolved(weights=weights.recorded)
    experiment, notes = make_experiment(
        config,
        data,
        federation,
        method=method,
        protection=protection,
        device=device,
        weights=weights.path,
        progress=progress,
        target=(encoding.target_mean, encoding.target_std) if encoding else (0.0, 1.0),
    )
    config = config.resolved(precision=experiment.prepare.precision)
    content = {"data_fingerprint": data.fingerprint}
    if config.split == "group" and data.split_group_of is not None:
        content["groups_fingerprint"] = fingerprint_groups(data.split_group_of)
    if weights.fingerprint:
        content["weights_fingerprint"] = weights.fingerprint
    in_round = clients_per_round(len(federation), config.fraction)
    workers = choose_workers(
        workers=config.workers,
        threads=config.threads,
        clients=in_round,
        parameters=sum(parameter.numel() for parameter in experiment.network.parameters()),
        samples=experiment.samples_in_round(config.fraction) * config.rounds,
        on_cpu=device.type == "cpu",
    )
    config = config.resolved(workers=workers.workers, threads=workers.threads)
    notes = (*((weights.note,) if weights.note else ()), *method.notes, *batch_notes, *notes)
    if config.rounds < asked != RunConfig.rounds:
        notes += (f"{method.name} needs {config.rounds} round, more would repeat it: --rounds has no effect",)
    if experiment.protected:
        protection, costs = _plan_protection(config, experiment, in_round=in_round)
        notes += costs
        experiment = replace(experiment, protection=protection)
        config = config.resolved(protect_settings=dict(vars(protection.settings)))
    drawn = config.fraction < 1 and experiment.protection.draws_clients
    return Setup(
        config=config,
        experiment=experiment,
        encoding=encoding,
        workers=workers,
        run_id=config.identity(**content),
        max_clients=len(federation) if drawn else in_round,
        notes=notes,
        weights=weights.fingerprint,
    )


def fit_own_table(
    config: RunConfig, data: DataSet, federation: Federation, protection: Protection[Any]
) -> tuple[TableEncoding, DataSet]:
    """Fit the encoding of a table in memory on the clients' training rows, and apply it."""
    from unseen.data.tables.encoding import encode, fit_encoding

    rows = [federation[position].train for position in range(len(federation))]
    encoding = fit_encoding(data, rows, statistics=cast(Any, config.table_statistics))
    return encoding, encode(data, encoding)


def _require_domains(method: Method[Any], data: DataSet, federation: Federation) -> None:
    """Refuse clients with fewer domains than the method compares within each of them."""
    if method.domains_per_client < 2:
        return
    for position, name in enumerate(federation.names):
        held = np.unique(data.domain_of[federation[position].train])
        if reason := method.explain_few_domains(name, [data.domains[number] for number in held]):
            raise UsageError(reason)


def _cap_rounds(config: RunConfig, method: Method[Any]) -> RunConfig:
    """Leave out rounds in which the method would only repeat itself."""
    return config.resolved(rounds=min(config.rounds, method.default_rounds or config.rounds))


def initial_weights(config: RunConfig, data: DataSet, progress: Progress = no_progress) -> InitialWeights:
    """Find the weights that a configuration starts from; photographs' weights fit one or three channels."""
    return find_initial_weights(
        config.weights,
        cast(str, config.model),
        resolve_data_root(config.data_root),
        channels=data.input_shape[0] if data.is_image else 0,
        progress=progress,
    )


def partition_config(config: RunConfig) -> PartitionConfig:
    """Return how the configuration splits domains among clients."""
    return PartitionConfig(
        kind=cast(Any, config.partition),
        clients_per_domain=config.clients_per_domain,
        alpha=config.alpha,
        heterogeneity=config.heterogeneity,
    )


def split_fractions(config: RunConfig) -> SplitFractions:
    """Return how the configuration splits every source domain."""
    return SplitFractions(validation=config.validation, test=config.test, by_group=config.split == "group")


def _choose_split(config: RunConfig, data: DataSet) -> RunConfig:
    """Choose the split by group where the data has several samples of a group; refuse it without groups."""
    split = config.split or ("group" if data.repeats_groups else "sample")
    if split == "group" and data.split_group_of is None and data.has_content:
        raise UsageError(
            f"--split group: {data.name} names no groups; name them with --group-column (tables) or "
            "--group-pattern (folders), or use --split sample"
        )
    return config.resolved(split=split)


def check_names(config: RunConfig) -> tuple[Method[Any], Protection[Any]]:
    """Make method and protection; refuse unknown names, and a protection that does not support the method."""
    method = make_method(config.method, config.settings, weighting=config.weighting)
    protection = make_protection(config.protect, config.protect_settings)
    reason = protection.incompatibility(method.traits)
    if reason is not None:
        served = [name for name in METHODS if protection.incompatibility(make_method(name).traits) is None]
        raise UsageError(
            f"--protect {protection.name} does not support {method.name}: {reason}. "
            f"It supports {', '.join(served)}"
        )
    head = make_starting_head(config.head, method)
    if head is not None and (reason := protection.incompatibility(head.traits)) is not None:
        raise UsageError(f"--protect {protection.name} does not support --head {config.head}: {reason}")
    config.check_names()
    if averages_products(config):
        single = replace(method.traits, needs_individual_updates=True, surgery=None)
        if protection.incompatibility(single) is not None:
            raise UsageError(
                f"--lora-average products needs each client's factors, which --protect {protection.name} "
                "hides from the server: use --lora-average frozen-a, whose mean is exact"
            )
    average = make_average(config.average, config.average_settings)
    if average.needs_loss and config.validation == 0:
        raise UsageError(
            f"--average {config.average} needs validation samples of the sources: give --validation above 0"
        )
    if config.update_dtype != "float32" and config.protect != "none":
        raise UsageError(
            f"--update-dtype is for updates that are sent as they are, not with --protect {config.protect}"
        )
    if config.evaluate_clients and (config.protect != "none" or config.engine != "local"):
        raise UsageError(
            "--evaluate-clients shows every client's own model to all domains, which --protect and sites "
            "elsewhere exclude: use --protect none and --engine local"
        )
    _check_batch_norm(config, method)
    if method.needs_texts and config.train not in (None, method.default_train):
        raise UsageError(
            f"{method.name} trains on features of a frozen CLIP: leave out --train {config.train}"
        )
    if config.keep_optimizer_state and method.own_optimizers:
        raise UsageError(f"--keep-optimizer-state cannot act on {method.name}: {method.own_optimizers}")
    check_weighting(config, protection)
    check_merging(config, method, protection)
    check_circulating(config, method)
    local_plan(config)
    return method, protection


def _plan_protection(
    config: RunConfig, experiment: Experiment, *, in_round: int
) -> tuple[Protection[Any], tuple[str, ...]]:
    """Resolve the protection for the whole run; return it with notes on its cost."""
    method, federation, protection = experiment.method, experiment.federation, experiment.protection
    module = method.build_for(experiment.network, sources=federation.sources, seed=config.seed)
    planned = PlannedRun(
        method=method.traits,
        rounds=config.rounds,
        train_sizes=federation.train_sizes.tolist(),
        in_round=in_round,
        module=module,
        plan=experiment.plan,
        seed=config.seed,
        mixing_samples=experiment.prepare.augmentations.mixing_samples,
        extras=method.describe_extras(module),
        start={} if experiment.head is None else experiment.head.describe_extras(module),
    )
    protection.check(planned)
    protection = protection.resolve(planned)
    return protection, tuple(protection.cost_notes(planned))


def data_request(config: RunConfig, progress: Progress = no_progress) -> DataRequest:
    """Return the request that a configuration makes to its data source."""
    return DataRequest(
        source=config.data,
        root=resolve_data_root(config.data_root),
        image_size=config.image_size,
        domain_column=config.domain_column,
        target_column=config.target,
        task=config.task,
        skip_unreadable=config.skip_unreadable,
        image_column=config.image_column,
        group_column=config.group_column,
        group_pattern=config.group_pattern,
        samples_per_domain=config.samples_per_domain,
        settings=config.data_settings,
        progress=progress,
    )


def _fit_batch_size(config: RunConfig, federation: Federation) -> tuple[RunConfig, tuple[str, ...]]:
    """Lower the default batch size to the smallest client's number of samples, and say so; refuse others."""
    sizes = federation.train_sizes
    smallest, most, named = int(sizes.argmin()), config.batch_size, config.batch_size != RunConfig.batch_size
    count, client = int(sizes[smallest]), federation.names[smallest]
    if count >= most:
        return config, ()
    if named or count < SMALLEST_DEFAULT_BATCH:
        raise UsageError(
            f"batch size {most} is larger than the {count} training samples of client {client!r}; "
            f"use --batch-size {count} or less, or fewer clients"
        )
    note = f"batch size {count} in place of {most}: client {client!r} has {count} training samples"
    return config.resolved(batch_size=count), (note,)


def _check_batch_norm(config: RunConfig, method: Method[Any]) -> None:
    """Refuse pooled statistics where nothing is averaged, or where rounding would spoil the difference."""
    reason = ""
    if method.keeps_statistics:
        reason = f"{method.name} keeps every client's own batch norm"
    elif method.topology == "serial":
        reason = f"in {method.name} the model passes from one client to the next, so nothing is averaged"
    elif config.update_dtype != "float32":
        reason = f"--update-dtype {config.update_dtype} is too coarse for differences of moments"
    if config.batch_norm == "pooled" and reason:
        raise UsageError(f"--batch-norm pooled merges clients' statistics, and {reason}: use train or frozen")


def _default_model(data: DataSet, method: Method[Any]) -> str:
    """Choose by the inputs; on tables, a method that only sets the head gets the columns themselves."""
    if method.needs_texts:
        raise UsageError(
            f"{method.name} reads class names with the text tower of a CLIP: name one, such as "
            "--model clip-vit-b-32 --weights FILE.safetensors"
        )
    if not data.is_image:
        return "linear" if method.default_train == "head" else "mlp"
    return "mnist-cnn" if data.input_shape[-1] <= 32 else "resnet18"
