"""Well-known networks: AlexNet from torchvision, every other from timm, all with random weights.

The libraries are imported only when such a network is built. Pretrained weights are found by
`weight_sources` and loaded by `pretrained`; the names of their tensors are kept behind the prefix `body.`.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor, nn

from unseen.errors import UsageError, unknown_name
from unseen.models.factory import MODELS, InputSpec, ModelEntry
from unseen.models.network import Network
from unseen.models.torchvision_compat import import_timm, import_torchvision

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PATCHES = (16, 8, 4, 2)
_FEWEST_PATCHES = 7
"""A vision transformer gets the largest patches that still divide each side into this many."""


def make_timm(name: str, spec: InputSpec, *, known_as: str | None = None) -> TimmNetwork:
    """Build a network by its timm name, for images of the given shape."""
    shown = known_as or name
    if find_spec("timm") is None and get_close_matches(shown, list(MODELS)) and shown not in MODELS:
        raise unknown_name("model", shown, MODELS)
    timm = import_timm(f"model {shown!r}")
    known = timm.list_models()
    if name not in known:
        raise unknown_name("model", shown, {*MODELS, *get_close_matches(name.lower(), known)})
    channels, height, width = spec.image_shape(shown)
    options: dict[str, Any] = {}
    if "_patch16_" in name and name.startswith(("vit_", "deit_")):
        options = {"img_size": (height, width), "patch_size": choose_patch_size(shown, height, width)}
    elif timm.get_pretrained_cfg_value(name, "fixed_input_size"):
        options = {"img_size": (height, width)}
    try:
        body = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **options)
        network = TimmNetwork(body, outputs=spec.outputs, channels=channels)
        network.try_out((channels, height, width))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"model {shown!r} cannot take images of {height}x{width} with {channels} channels ({reason}): "
            "use another --image-size (such as 64 or 224) or another --model"
        ) from error
    return network


class AlexNet(Network):
    """AlexNet as torchvision builds it; the feature is its last hidden layer (4096).

    Taps are the outputs of the last three convolutions, after their ReLUs.
    """

    tap_names = ("features.6", "features.8", "features.10")
    head_alias = "classifier.6"

    def __init__(self, spec: InputSpec) -> None:
        super().__init__()
        channels, _, _ = spec.image_shape("alexnet", smallest=63)
        import_torchvision("model 'alexnet'")
        from torchvision.models import alexnet

        body = alexnet(weights=None)
        if channels != 3:
            body.features[0] = nn.Conv2d(channels, 64, kernel_size=11, stride=4, padding=2)
        body.classifier = body.classifier[:-1]
        self.body = body
        self.head = nn.Linear(4096, spec.outputs)
        self.pixel_mean = for_channels(_IMAGENET_MEAN, channels)
        self.pixel_std = for_channels(_IMAGENET_STD, channels)

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the layers in order; a tapped convolution is kept once its in-place ReLU has run."""
        kept = []
        value = inputs
        for number, layer in enumerate(self.body.features):
            value = layer(value)
            if taps and f"features.{number - 1}" in self.tap_names:
                kept.append(value)
        return self.body.classifier(self.body.avgpool(value).flatten(1)), tuple(kept)

    def early_stages(self) -> tuple[str, ...]:
        """Name the first two max pools."""
        return "body.features.2", "body.features.5"

    @property
    def last_stage(self) -> str:
        """The two hidden layers."""
        return self.tap_path("classifier")

    def tap_path(self, tap: str) -> str:
        """Return the name of a layer."""
        return f"body.{tap}"


def choose_patch_size(model: str, height: int, width: int) -> int:
    """Choose the largest patches that cut images of this size into at least seven by seven."""
    for patch in _PATCHES:
        if height % patch == 0 and width % patch == 0 and min(height, width) >= _FEWEST_PATCHES * patch:
            return patch
    raise UsageError(
        f"model {model!r} cuts images into equal patches, and {height}x{width} pixels cannot be cut so: "
        "use an even --image-size of 14 or more (a multiple of 16 is best)"
    )


def _entry(name: str, timm_name: str, summary: str, parameters: int) -> None:
    make = partial(make_timm, timm_name, known_as=name)
    MODELS.register(name)(ModelEntry(make, summary, (3, 224, 224), parameters, zoo=timm_name))


def make_resnet50_v1(spec: InputSpec) -> TimmNetwork:
    """Build the ResNet-50 of the first paper (He et al. 2015), for weights converted from Caffe or Keras.

    The first convolution of a stage halves the map, where today's ResNet-50 (v1.5) leaves that to the second.
    """
    network = make_timm("resnet50", spec, known_as="resnet50-v1")
    for stage in (network.body.layer2, network.body.layer3, network.body.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    return network


MODELS.register("alexnet")(
    ModelEntry(AlexNet, "AlexNet (torchvision; CSAC, FedADG)", (3, 224, 224), 57_044_810)
)
_entry("resnet18", "resnet18", "ResNet-18 (CSAC, MDFL, PPDG)", 11_181_642)
_entry("resnet50", "resnet50", "ResNet-50 (PPDG)", 23_528_522)
MODELS.register("resnet50-v1")(
    ModelEntry(
        make_resnet50_v1,
        "ResNet-50 with the strides of its first paper",
        (3, 224, 224),
        23_528_522,
    )
)
_entry("densenet121", "densenet121", "DenseNet-121 (PPDG)", 6_964_106)
_entry("efficientnet-b5", "efficientnet_b5", "EfficientNet-B5 (MDFL)", 28_361_274)
_entry("efficientnet-lite0", "tf_efficientnet_lite0", "EfficientNet-Lite0, small and quick", 3_383_818)
_entry("vit-tiny", "vit_tiny_patch16_224", "vision transformer, width 192 (MDFL)", 5_526_346)
_entry("vit-small", "vit_small_patch16_224", "vision transformer, width 384 (MDFL)", 21_669_514)


_TAPS = 3
_AFTER_STEM = 4
"""Stages begin where maps are this many times smaller than the image."""


class TimmNetwork(Network):
    """Wraps a timm model that was built without classifier (`num_classes=0`).

    Taps are the last three levels that timm itself names as features: stages of a convolutional
    network, blocks of a transformer (as maps without the class token). A model that does not provide them as
    maps has none.
    """

    def __init__(self, body: Any, *, outputs: int, channels: int) -> None:
        super().__init__()
        spec = body.pretrained_cfg
        self.body = body
        self.head = nn.Linear(getattr(body, "head_hidden_size", body.num_features), outputs)
        self.head_alias = spec.get("classifier") or "head"
        self.pixel_mean = for_channels(spec["mean"], channels)
        self.pixel_std = for_channels(spec["std"], channels)
        self.map_layout = getattr(body, "output_fmt", self.map_layout)
        self.tap_names = tuple(str(level["module"]) for level in list(body.feature_info)[-_TAPS:])

    @property
    def last_stage(self) -> str:
        """The last level that timm names as features and that consists of layers (not a single norm)."""
        names = [str(level["module"]) for level in self.body.feature_info]
        staged = [name for name in names if any(self.body.get_submodule(name).children())]
        return self.tap_path(staged[-1]) if staged else ""

    def tap_path(self, tap: str) -> str:
        """Return the name of a level's module."""
        return f"body.{tap}"

    @staticmethod
    def import_libraries() -> None:
        """Import timm in a way that works with every torch."""
        import_timm("a model of the zoo")

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return timm's pre-classifier features and, if requested, the tapped maps."""
        kept: list[Tensor] = []
        if not (taps and self.tap_names):
            final = self.body.forward_features(inputs)
        elif hasattr(self.body, "forward_intermediates"):
            final, kept = self.body.forward_intermediates(inputs, indices=_TAPS, output_fmt="NCHW")
        else:
            final, kept = self._extract_watching(inputs)
        features = self.body.forward_head(final, pre_logits=True)
        first = len(kept) - len(self.tap_names)  # the others are in front of the trained part
        return cast(Tensor, features.flatten(1)), tuple(kept[first:])

    def early_stages(self) -> tuple[str, ...]:
        """Name the first two of timm's levels after the stem: maps at most a quarter as wide as the image."""
        levels = list(self.body.feature_info)
        later = [level for level in levels if level["reduction"] >= _AFTER_STEM]
        chosen = later if len(later) >= 2 else levels
        return tuple(f"body.{level['module']}" for level in chosen[:2])

    def _extract_watching(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Record the outputs of the tapped modules."""
        kept: list[Tensor] = []
        watches = [
            self.body.get_submodule(name).register_forward_hook(
                lambda _module, _inputs, out: kept.append(out)
            )
            for name in self.tap_names
        ]
        try:
            return self.body.forward_features(inputs), kept
        finally:
            for watch in watches:
                watch.remove()

    def try_out(self, shape: tuple[int, int, int]) -> None:
        """Run one blank image, which shows whether the body can take this size and whether there are maps."""
        training = self.training
        blank = torch.zeros(1, *shape)
        self.eval()
        with torch.no_grad():
            self(blank)
            if not self._taps_are_maps(blank):
                self.tap_names = ()
        self.train(training)

    def _taps_are_maps(self, blank: Tensor) -> bool:
        try:
            taps = self.full(blank).taps
        except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
            return False
        return len(taps) == len(self.tap_names) and all(tap.ndim == 4 for tap in taps)


def for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Keep one value per channel, or their mean where the image has another number of channels."""
    if len(values) == channels:
        return tuple(float(value) for value in values)
    return (round(sum(values) / len(values), 6),)
