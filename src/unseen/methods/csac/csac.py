"""CSAC: merge client models layer by layer, then calibrate the merged model against each client's own.

Settings cover the paper's defaults, its ablations, and the variants of its released code; the calibration's
loss is in `alignment.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Size, Tensor

from unseen.aggregation import (
    DistanceMetric,
    Grouping,
    ServerWork,
    layer_distances,
    layerwise_weighted_sum,
    select_recorded_layers,
    unequal_weights,
)
from unseen.aggregation.distances import LayerWeighting, divergence_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting
from unseen.methods._shared import frozen_copy
from unseen.methods.base import Method, Paper, register
from unseen.methods.csac.alignment import AlignmentLoss, Projections, tapped_maps
from unseen.models import FlatState, Network
from unseen.seeding import global_torch_seed
from unseen.training import ClientWork, Update

Variant = Literal["paper", "as-released"]
Alignment = Literal["cross-layer", "same-layer", "none"]
Attention = Literal["both", "position", "channel", "none"]
Distance = Literal["mmd", "mse"]
Partner = Literal["acquired", "latest"]


@dataclass(frozen=True)
class CSACSettings(Settings):
    """Settings of CSAC."""

    strength: float = setting(
        0.6, "lambda, the weight of the alignment in calibration; 0 = none", search=LogUniform(0.05, 5.0)
    )
    acquisition_epochs: int = setting(30, "epochs of a client's first round (acquisition), on its own data")
    acquisition_batches_per_epoch: int | None = setting(
        None, "batches of an epoch of acquisition; none = as in the other rounds"
    )
    label_smoothing: float = setting(0.1, "label smoothing in acquisition; 0 = off", search=Uniform(0.0, 0.2))
    cross_entropy: bool = setting(True, "whether calibration also minimizes the task's own loss")
    strategy: LayerWeighting = setting(
        "divergence", "clients that count more in the merged model: those far from the mean, near it, or none"
    )
    metric: DistanceMetric = setting("l2", "distance of a client's layer to the mean: l2, l1 or cosine")
    layer: Grouping = setting("tensor", "what gets separate weights in merging: every tensor or module")
    alignment: Alignment = setting(
        "cross-layer", "which layers are aligned: every pair, each with its own partner, or none"
    )
    attention: Attention = setting(
        "both", "what weights the pairs: position-wise and channel-wise attention, one of them, or nothing"
    )
    attention_gradient: bool = setting(False, "whether gradients flow through the attention weights")
    query_key: bool = setting(False, "1x1 query and key convolutions before the position-wise map")
    distance: Distance = setting("mmd", "distance between two sets of features: mmd or mse")
    logits_term: bool = setting(False, "align the outputs of both models too")
    channels: int = setting(32, "channels of the projected maps")
    rebuild_projections: bool = setting(False, "new random projections in every round instead of fixed ones")
    partner: Partner = setting(
        "acquired", "the frozen model: the client's own after its first round, or after its latest round"
    )
    variant: Variant = setting(
        "paper", "as-released: what the authors' code does by default, only the outputs are aligned"
    )

    def __post_init__(self) -> None:
        _require(self.strength >= 0, f"setting 'strength' must not be negative, not {self.strength}")
        _require(0 <= self.label_smoothing < 1, "setting 'label_smoothing' must be in [0, 1)")
        for name in ("acquisition_epochs", "acquisition_batches_per_epoch", "channels"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"setting {name!r} must be at least 1, not {value}")
        _require(
            self.cross_entropy or self.aligns,
            "csac without cross-entropy and without alignment has nothing to learn: set cross_entropy=true",
        )
        self._refuse_idle()

    @property
    def aligns_maps(self) -> bool:
        """Whether the maps of inner layers are aligned."""
        return self.variant == "paper" and self.alignment != "none" and self.strength > 0

    @property
    def aligns_logits(self) -> bool:
        """Whether the outputs are aligned."""
        return (self.variant == "as-released" or self.logits_term) and self.strength > 0

    @property
    def aligns(self) -> bool:
        """Whether there is an alignment term at all."""
        return self.aligns_maps or self.aligns_logits

    def _refuse_idle(self) -> None:
        """Refuse settings that other settings make ineffective, rather than ignore them silently."""
        changed = [
            name
            for name in ("attention", "attention_gradient", "query_key")
            if getattr(self, name) != getattr(CSACSettings, name)
        ]
        if self.variant == "as-released":
            changed += ["alignment"] if self.alignment != "cross-layer" else []
            cause = "variant=as-released, which aligns no inner layers"
        else:
            cause = f"alignment={self.alignment}, which uses no attention"
        without_attention = self.variant == "as-released" or self.alignment != "cross-layer"
        _require(
            not (without_attention and changed), f"setting {', '.join(changed)} has no effect with {cause}"
        )
        _require(
            not (self.query_key and self.attention in ("channel", "none")),
            f"setting query_key has no effect with attention={self.attention}: it is for the position map",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


LOCAL_MODEL = "local model"
PROJECTIONS = "projections"


@register
class CSAC(Method[CSACSettings]):
    """Collaborative semantic aggregation and calibration.

    A client's first round is acquisition: it trains its own model (eq. 2), keeps it and sends it. In every
    later round it calibrates the merged model it receives (eq. 11) against the model it kept, which never
    changes and is never sent again. The server merges by divergence from the mean (eq. 4).
    """

    name = "csac"
    title = "CSAC"
    summary = "layer-wise merging by divergence, then calibration against each client's own frozen model"
    paper = Paper(
        title="Collaborative Semantic Aggregation and Calibration for Federated Domain Generalization",
        authors="Yuan, Ma, Chen, Kuang, Wu, Lin",
        year=2023,
        venue="IEEE TKDE",
        url="https://arxiv.org/abs/2110.06736",
    )
    no_average = "it weights every layer by distances of its own"
    default_weighting = "uniform"
    fixed_weights = ""
    needs_individual_updates = True
    uses_taps = True
    beyond_losses = "its loss compares the features of a batch as a set"
    mixed_targets = True
    effort_settings: ClassVar[Mapping[str, Any]] = {"acquisition_epochs": 1}

    @property
    def reweighting(self) -> str:
        """The rule of equation 4; it starts from the clients' weights."""
        return "" if self.settings.strategy == "average" else f"then by {self.settings.strategy}"

    def training_schedule(
        self, *, rounds: int, local_epochs: int, batches_per_epoch: int | None
    ) -> list[tuple[int, int | None]]:
        """Count the acquisition of the first round and the calibration of all others."""
        settings = self.settings
        acquisition = settings.acquisition_batches_per_epoch or batches_per_epoch
        return [
            (settings.acquisition_epochs, acquisition),
            ((rounds - 1) * local_epochs, batches_per_epoch),
        ]

    def client(self, work: ClientWork) -> Update:
        """Acquire in the client's first round, calibrate in all others."""
        return self._calibrate(work) if LOCAL_MODEL in work.state else self._acquire(work)

    def server(self, work: ServerWork) -> Tensor:
        """Merge layer by layer: M_l = sum_k p_{l,k} G_{k,l} (eq. 3 and 4).

        Weights by samples enter where the paper has 1 / K: in the mean of eq. 3 and as a factor in eq. 4.
        """
        settings, updates = self.settings, work.updates
        start = unequal_weights(updates.samples, self.weighting)
        layers, distances = layer_distances(
            updates.rows, updates.layout, metric=settings.metric, grouping=settings.layer, weights=start
        )
        weights = divergence_weights(distances, settings.strategy, start=start)
        shown = select_recorded_layers(layers, updates.layout)
        work.diagnostics["layers"] = [layers[position].name for position in shown]
        work.diagnostics["layer_weights"] = [
            [round(value, 5) for value in row] for row in weights[shown].tolist()
        ]
        return layerwise_weighted_sum(updates.rows, weights, layout=updates.layout, grouping=settings.layer)

    def _acquire(self, work: ClientWork) -> Update:
        """Train on the client's own data, with label smoothing (eq. 2), and keep the result."""
        settings = self.settings
        plan = replace(
            work.plan,
            epochs=settings.acquisition_epochs,
            batches_per_epoch=settings.acquisition_batches_per_epoch or work.plan.batches_per_epoch,
        )

        def loss(batch: Batch) -> Tensor:
            logits = work.module(batch.inputs)
            return work.task_loss(logits, batch.targets, label_smoothing=settings.label_smoothing)

        work.fit(loss, plan=plan, purpose="acquisition")
        update = work.update()
        work.state[LOCAL_MODEL] = update.weights.clone()
        return update

    def _calibrate(self, work: ClientWork) -> Update:
        """Train the merged model on lambda * L_AL + L_AR (eq. 11)."""
        settings, fused = self.settings, cast(Network, work.module)
        if settings.aligns:
            projections, align = self._alignment(work)
        else:
            projections, align = None, None

        def loss(batch: Batch) -> Tensor:
            output = fused.full(batch.inputs)
            value = torch.zeros((), device=batch.inputs.device)
            if align is not None:
                value = value + settings.strength * align(batch.inputs, output)
            if settings.cross_entropy:
                value = value + work.task_loss(output.logits, batch.targets)
            return value

        work.fit(loss, companions=[projections] if projections is not None else [])
        update = work.update(diagnostics=align.diagnostics() if align is not None else {})
        if projections is not None and not settings.rebuild_projections:
            work.state[PROJECTIONS] = projections.read()
        if settings.partner == "latest":
            work.state[LOCAL_MODEL] = update.weights.clone()
        return update

    def _alignment(self, work: ClientWork) -> tuple[FlatState | None, AlignmentLoss]:
        """Set up the frozen partner and, where inner layers are aligned, the projections."""
        if self.settings.distance == "mmd" and work.plan.batch_size < 2:
            raise UsageError("csac compares the features of a batch: use --batch-size 2 or more, not 1")
        partner = frozen_partner(work)
        if not self.settings.aligns_maps:
            return None, AlignmentLoss(self.settings, partner=partner, projections=None)
        projections = self._projections(work, tap_shapes(work, partner))
        flat = FlatState(projections.to(work.flat.vector.device))
        if PROJECTIONS in work.state and not self.settings.rebuild_projections:
            flat.load(work.state[PROJECTIONS])
        return flat, AlignmentLoss(self.settings, partner=partner, projections=projections)

    def _projections(self, work: ClientWork, shapes: Sequence[Size]) -> Projections:
        """Draw projections, the same in every round unless the settings ask for new ones."""
        drawn_in = work.round if self.settings.rebuild_projections else 0
        with global_torch_seed(work.seed, "csac projections", work.client, drawn_in):
            return Projections(shapes, channels=self.settings.channels, query_key=self.settings.query_key)


def frozen_partner(work: ClientWork) -> Network:
    """Return the client's own model, frozen."""
    return frozen_copy(work, work.state[LOCAL_MODEL])


@torch.no_grad()
def tap_shapes(work: ClientWork, network: Network) -> list[Size]:
    """Find the shapes of the tapped maps (channels, height, width), from one sample."""
    sample = work.prepare(work.train.gather(torch.tensor([0])))
    return [maps.shape[1:] for maps in tapped_maps(network.full(sample.inputs))]
