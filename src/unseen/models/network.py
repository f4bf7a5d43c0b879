"""The common interface of all networks: logits, features, taps on inner layers, a replaceable head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor, nn

from unseen.models.mkldnn import BlockedStage, dense
from unseen.seeding import global_torch_seed

if TYPE_CHECKING:
    from unseen.models.class_texts import ClassTexts

Precision = Literal["float32", "bfloat16"]


class Output(NamedTuple):
    """Result of one forward pass.

    taps  the inner feature maps named by `Network.tap_names`, in that order
    """

    logits: Tensor
    features: Tensor
    taps: tuple[Tensor, ...]


class Network(nn.Module):
    """A feature extractor with taps, followed by a linear head.

    Subclasses define `extract`. `pixel_mean` and `pixel_std` normalize images in [0, 1] before they are
    passed in: one value for all channels or one for each; both are recorded with the model. `head_alias` is
    the name of the head in weights files from elsewhere; `notes` are what a user should know about how the
    network was built. `bottleneck`, if there is one, follows the extractor: its output are the features.
    `map_layout` is the order of dimensions of what inner stages return. `precision` is
    that of the extractor; features, taps, the head and whatever a loss computes from them are float32.
    `texts` turns class names into features where there is a text tower, whose width is `text_width`; it is
    no part of the network's state.
    """

    model_name: str = "network"
    tap_names: tuple[str, ...] = ()
    pixel_mean: tuple[float, ...] = (0.0,)
    pixel_std: tuple[float, ...] = (1.0,)
    head_alias: str = "head"
    notes: tuple[str, ...] = ()
    map_layout: str = "NCHW"
    precision: Precision = "float32"
    texts: ClassTexts | None = None
    text_width: int = 0
    head: nn.Linear
    bottleneck: nn.Module

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return features, in front of a bottleneck, and, if requested, the tapped inner maps."""
        raise NotImplementedError

    def own_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Pick the network's own tensors out of a weights file; what else it uses is loaded here."""
        return dict(tensors)

    @property
    def last_stage(self) -> str:
        """Name of the module that `--train last-stage` starts with; empty if the network has no stages."""
        return ""

    def tap_path(self, tap: str) -> str:
        """Return the name of the module whose output a tap is."""
        return tap

    @property
    def feature_size(self) -> int:
        """Length of a feature vector."""
        return self.head.in_features

    def features(self, inputs: Tensor) -> Tensor:
        """Return the input of the head."""
        return self.features_and_taps(inputs)[0]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (or the predicted value)."""
        logits: Tensor = self.head(self.features(inputs))
        return logits

    def full(self, inputs: Tensor) -> Output:
        """Return logits, features and taps of one forward pass."""
        features, taps = self.features_and_taps(inputs, taps=True)
        return Output(self.head(features), features, taps)

    def early_stages(self) -> tuple[str, ...]:
        """Name the modules whose outputs are the first inner maps; empty where that is not known."""
        return ()

    def features_and_taps(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run extractor and bottleneck with products in the network's precision, and return float32."""
        if self.precision == "float32":
            return self._extract_narrow(inputs, taps=taps)
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
            features, kept = self._extract_narrow(inputs, taps=taps)
        return features.float(), tuple(tap.float() for tap in kept)

    def _extract_narrow(self, inputs: Tensor, *, taps: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
        features, kept = self.extract(inputs, taps=taps)
        narrow = self._modules.get("bottleneck")
        return features if narrow is None else narrow(features), kept

    @property
    def shown_features(self) -> int:
        """Length of the head's inputs; 0 if the output is not just the head's."""
        plain = type(self).forward is Network.forward and isinstance(self.head, nn.Linear)
        return self.feature_size if plain else 0

    def outputs_and_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs, the same as of `forward`, and the head's inputs, of one forward pass."""
        features = self.features(inputs)
        return self.head(features), features

    @staticmethod
    def import_libraries() -> None:
        """Import what unpickling a network of this class needs, where a plain import is not enough."""

    def replace_head(self, outputs: int, *, seed: int = 0) -> None:
        """Replace the head with a new linear layer with that many outputs, seeded by name."""
        with global_torch_seed(seed, "replaced head", self.model_name, outputs):
            fresh = nn.Linear(self.feature_size, outputs)
        self.head = fresh.to(self.head.weight.device)


def set_precision(module: nn.Module, precision: Precision) -> None:
    """Set the precision of every network inside a module."""
    for part in module.modules():
        if isinstance(part, Network):
            part.precision = precision


class StagedNetwork(Network):
    """A network that is a chain of named stages; chosen stages are the taps."""

    def __init__(self, stages: dict[str, nn.Module], *, head: nn.Linear, taps: tuple[str, ...] = ()) -> None:
        super().__init__()
        unknown = set(taps) - set(stages)
        if unknown:
            raise ValueError(f"taps {sorted(unknown)} are not among the stages {list(stages)}")
        self.stages = nn.ModuleDict(stages)
        self.head = head
        self.tap_names = taps

    @property
    def last_stage(self) -> str:
        """The last of the stages."""
        return self.tap_path(list(self.stages)[-1])

    def tap_path(self, tap: str) -> str:
        """Return the name of a stage's module."""
        return f"stages.{tap}"

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the stages in order and keep the outputs of the tapped ones."""
        kept = []
        value = inputs
        for name, stage in self.stages.items():
            value = stage(value if isinstance(stage, BlockedStage) else dense(value))
            if taps and name in self.tap_names:
                kept.append(dense(value))
        return dense(value).flatten(1), tuple(kept)

    def early_stages(self) -> tuple[str, ...]:
        """Name the first two stages."""
        return tuple(f"stages.{name}" for name in list(self.stages)[:2])
