"""Well-known networks: AlexNet from torchvision, every other from timm. Nothing is ever downloaded.

The libraries are imported when such a network is made, not before. Pretrained weights come from a file
the user names (see `weights`); the names of their tensors are kept behind the prefix `body.`.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from unseen.errors import UsageError, unknown_name
from unseen.models.build import MODELS, ModelEntry, ModelFacts
from unseen.models.network import Network
from unseen.models.timm_network import TimmNetwork, for_channels
from unseen.models.torchvision_shim import import_timm, import_torchvision

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_PATCHES = (16, 8, 4, 2)
_FEWEST_PATCHES = 7
"""A vision transformer gets the largest patches that still cut each side into this many."""


def make_timm(name: str, facts: ModelFacts, *, known_as: str | None = None) -> TimmNetwork:
    """Make a network by its timm name, for images of the given shape."""
    shown = known_as or name
    if find_spec("timm") is None and get_close_matches(shown, list(MODELS)) and shown not in MODELS:
        raise unknown_name("model", shown, MODELS)
    timm = import_timm(f"model {shown!r}")
    known = timm.list_models()
    if name not in known:
        raise unknown_name("model", shown, {*MODELS, *get_close_matches(name.lower(), known)})
    channels, height, width = facts.image_shape(shown)
    options: dict[str, Any] = {}
    if "_patch16_" in name and name.startswith(("vit_", "deit_")):
        options = {"img_size": (height, width), "patch_size": _patch_size(shown, height, width)}
    elif timm.get_pretrained_cfg_value(name, "fixed_input_size"):
        options = {"img_size": (height, width)}
    try:
        body = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **options)
        network = TimmNetwork(body, outputs=facts.outputs, channels=channels)
        network.try_out((channels, height, width))
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"model {shown!r} cannot take images of {height}x{width} with {channels} channels ({reason}): "
            "use another --image-size (64 or 224, say) or another --model"
        ) from error
    return network


class AlexNet(Network):
    """AlexNet as torchvision builds it; the feature is its last hidden layer (4096).

    Taps are the outputs of the last three convolutions, behind their ReLUs.
    """

    tap_names = ("features.6", "features.8", "features.10")
    head_alias = "classifier.6"

    def __init__(self, facts: ModelFacts) -> None:
        super().__init__()
        channels, _, _ = facts.image_shape("alexnet", smallest=63)
        import_torchvision("model 'alexnet'")
        from torchvision.models import alexnet

        body = alexnet(weights=None)
        if channels != 3:
            body.features[0] = nn.Conv2d(channels, 64, kernel_size=11, stride=4, padding=2)
        body.classifier = body.classifier[:-1]
        self.body = body
        self.head = nn.Linear(4096, facts.outputs)
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


def _patch_size(model: str, height: int, width: int) -> int:
    for patch in _PATCHES:
        if height % patch == 0 and width % patch == 0 and min(height, width) >= _FEWEST_PATCHES * patch:
            return patch
    raise UsageError(
        f"model {model!r} cuts images into equal patches, and {height}x{width} pixels cannot be cut so: "
        "use an even --image-size of 14 or more (a multiple of 16 is best)"
    )


def _entry(name: str, timm_name: str, description: str, parameters: int) -> None:
    make = partial(make_timm, timm_name, known_as=name)
    MODELS.register(name)(ModelEntry(make, description, (3, 224, 224), parameters))


MODELS.register("alexnet")(
    ModelEntry(AlexNet, "AlexNet (torchvision; CSAC, FedADG)", (3, 224, 224), 57_044_810)
)
_entry("resnet18", "resnet18", "ResNet-18 (CSAC, MDFL, PPDG)", 11_181_642)
_entry("resnet50", "resnet50", "ResNet-50 (PPDG)", 23_528_522)
_entry("densenet121", "densenet121", "DenseNet-121 (PPDG)", 6_964_106)
_entry("efficientnet-b5", "efficientnet_b5", "EfficientNet-B5 (MDFL)", 28_361_274)
_entry("efficientnet-lite0", "tf_efficientnet_lite0", "EfficientNet-Lite0, small and quick", 3_383_818)
_entry("vit-tiny", "vit_tiny_patch16_224", "vision transformer, width 192 (MDFL)", 5_526_346)
_entry("vit-small", "vit_small_patch16_224", "vision transformer, width 384 (MDFL)", 21_669_514)
