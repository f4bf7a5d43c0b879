"""Build a run's experiment from its configuration: network, trained part, local training, cached features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from unseen.config import RunConfig
from unseen.data import DataSet
from unseen.data.augmentation import AugmentationList, parse_augmentations
from unseen.data.sources import Progress, no_progress
from unseen.data.transforms import Normalize
from unseen.devices import choose_device
from unseen.engine import Experiment
from unseen.errors import UsageError
from unseen.federation import Federation
from unseen.methods.base import Method
from unseen.methods.closed_form import RANDOM, ZeroShot, make_starting_head, start_zero_shot
from unseen.methods.closed_form.zero_shot import require_texts
from unseen.models import BatchNormChoice, InputSpec, Network, build_model, freeze_statistics, select_trained
from unseen.models.lora import add_lora
from unseen.models.splitting import SPLIT_PARTS, split_network
from unseen.privacy import Protection
from unseen.training import LocalTrainingConfig, Preprocessor, check_feature_augmentation, choose_precision
from unseen.training.feature_cache import cache_features

if TYPE_CHECKING:
    import torch

DEFAULT_VIEWS = 4
"""Versions of each training image whose features are cached: itself and three augmented ones."""


def make_experiment(
    config: RunConfig,
    data: DataSet,
    federation: Federation,
    *,
    method: Method[Any],
    protection: Protection[Any],
    device: torch.device | None = None,
    weights: Path | None = None,
    progress: Progress = no_progress,
    target: tuple[float, float] = (0.0, 1.0),
) -> tuple[Experiment, tuple[str, ...]]:
    """Build the experiment of a resolved configuration, on all data or on one site's part, with notes on it.

    device    where clients train; chosen from the configuration unless given
    weights   file of weights to start from
    progress  called while features of a frozen part are computed
    target    mean and std by which regression targets were standardized
    """
    spec = InputSpec(data.input_shape, data.outputs, data.classes)
    network = build_model(cast(str, config.model), spec, seed=config.seed, weights=weights)
    if method.needs_texts:
        require_texts(network, f"method {method.name}")
    if config.head == ZeroShot.name:
        start_zero_shot(network)
    if config.batch_norm == "frozen":
        freeze_statistics(network)
    _select_trained_part(network, config, spec)
    device = device or choose_device(config.device)
    precision = choose_precision(config.precision, device, network=network, input_shape=data.input_shape)
    experiment = Experiment(
        data=data,
        federation=federation,
        method=method,
        network=network,
        plan=local_plan(config),
        prepare=Preprocessor(
            normalize=normalization(data, network),
            augmentation=cast(str, config.augment),
            device=device,
            precision=precision,
            classes=len(data.classes),
        ),
        compile=config.compile,
        seed=config.seed,
        update_dtype=config.update_dtype,
        batch_norm=_statistics_choice(config, method),
        target_mean=target[0],
        target_scale=target[1],
        protection=protection,
        average_products=averages_products(config),
        head=make_starting_head(config.head, method),
    )
    notes: tuple[str, ...] = ()
    if config.train in SPLIT_PARTS:
        experiment, notes = split_experiment(experiment, config, progress=progress)
    if config.head == ZeroShot.name:
        _require_head_kept(experiment)
    check_feature_augmentation(
        cast(str, config.augment),
        experiment.network,
        experiment.data.input_shape,
        classes=len(data.classes),
    )
    return experiment, notes


def _require_head_kept(experiment: Experiment) -> None:
    """Refuse a method whose deployed network has another head than the network it is built from."""
    method, network = experiment.method, experiment.network
    module = method.build_for(network, sources=experiment.federation.sources, seed=experiment.seed)
    found, given = getattr(method.deployed(module).head, "weight", None), network.head.weight
    if found is None or found.shape != given.shape or not found.equal(given):
        raise UsageError(
            f"--head {ZeroShot.name} sets the head on a CLIP's own features, and {method.name} has another: "
            f"use --head {RANDOM}"
        )


_NO_ROWS = np.empty(0, dtype=np.int64)
"""A site that only evaluates has no clients."""


def split_experiment(
    experiment: Experiment, config: RunConfig, *, progress: Progress = no_progress
) -> tuple[Experiment, tuple[str, ...]]:
    """Freeze the network up to the part that `--train` names, and replace samples with cached features."""
    data, federation, network = experiment.data, experiment.federation, experiment.network
    augmentation = cast(str, config.augment)
    images = AugmentationList(parse_augmentations(augmentation).at("images"))
    if mixing := images.mixing_samples:
        raise UsageError(
            f"--augment {mixing} mixes the samples of a batch, and --train {config.train} caches the frozen "
            "part's output of single samples: leave it out, or use --train all"
        )
    frozen, trained = split_network(network, cast(str, config.train), shape=data.input_shape)
    rows = [federation[position] for position in range(len(federation))]
    domains = [*federation.held_out, *federation.validate_on]
    evaluated = [*(client.validation for client in rows), *(client.test for client in rows)]
    evaluated += [data.indices(domain) for domain in domains]
    views = config.views or (DEFAULT_VIEWS if parse_augmentations(augmentation).at("images") else 1)
    cached, note = cache_features(
        data,
        frozen,
        experiment.prepare,
        training=np.concatenate([_NO_ROWS, *(client.train for client in rows)]),
        evaluation=np.concatenate([_NO_ROWS, *evaluated]),
        views=views,
        progress=progress,
    )
    inside = [part for part in augmentation.split("+") if parse_augmentations(part).in_network]
    prepare = replace(experiment.prepare, normalize=Normalize(), augmentation="+".join(inside) or "none")
    whole = replace(experiment, data=cached, network=trained, prepare=prepare, whole=network, images=data)
    notes = [note]
    if experiment.method.uses_taps and trained.tap_names != network.tap_names:
        left = f"only {', '.join(trained.tap_names)} is" if trained.tap_names else "none is"
        notes.append(
            f"{experiment.method.name} uses inner maps ({', '.join(network.tap_names)}), of which {left} in "
            "the trained part; with none it uses the features"
        )
    return whole, tuple(notes)


def _select_trained_part(network: Network, config: RunConfig, spec: InputSpec) -> None:
    """Freeze what `--train` does not name; add LoRA's factors if it asks for them."""
    if config.train == "lora":
        add_lora(
            network,
            rank=config.lora_rank,
            alpha=config.lora_alpha,
            seed=config.seed,
            freeze_a=config.lora_average == "frozen-a",
            input_shape=spec.input_shape,
        )
    elif config.train not in (None, "all", *SPLIT_PARTS):
        select_trained(network, [pattern.strip() for pattern in config.train.split(",")])


def averages_products(config: RunConfig) -> bool:
    """Check whether the server averages products of LoRA's factors."""
    return config.train == "lora" and config.lora_average == "products"


def local_plan(config: RunConfig) -> LocalTrainingConfig:
    """Return the local training that a configuration asks of every client."""
    return LocalTrainingConfig(
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        optimizer=config.optimiser,
        batches_per_epoch=config.batches_per_epoch,
        label_smoothing=config.label_smoothing,
        schedule=config.schedule,
        schedule_settings=config.schedule_settings,
        rounds=config.rounds,
        schedule_per=cast(Any, config.schedule_per),
        warmup=config.warmup,
        clip_norm=config.clip_norm,
        head_lr=config.head_lr,
        sharpness=config.sharpness,
        rho=config.rho,
        keep_state=config.keep_optimizer_state,
    )


def _statistics_choice(config: RunConfig, method: Method[Any]) -> BatchNormChoice:
    """Return how statistics are merged; pooled data has pooled statistics anyway."""
    pooled_already = config.batch_norm == "pooled" and method.topology == "pooled"
    return "train" if pooled_already else cast(BatchNormChoice, config.batch_norm)


def normalization(data: DataSet, network: Network) -> Normalize:
    """Return how the network expects pixels; measured values come normalized already."""
    return Normalize() if data.is_measured else Normalize(mean=network.pixel_mean, std=network.pixel_std)
