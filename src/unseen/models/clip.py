"""CLIP: open_clip's image towers as networks, with the text tower beside them.

The features are the image's vector times the root of its length, so that a feature's mean square is 1, as
heads elsewhere get them. The cosine with a class's vector is then a linear head. Tensors of the image tower
are kept behind the prefix `body.`; published files have them behind `visual.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.errors import UsageError
from unseen.models.class_texts import ClassTexts
from unseen.models.factory import MODELS, InputSpec, ModelEntry
from unseen.models.network import Network
from unseen.models.timm_backbones import choose_patch_size, for_channels
from unseen.models.torchvision_compat import import_open_clip

PREFIX = "clip-"
TINY = f"{PREFIX}tiny"
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of OpenAI's training images, used by all published models here."""
_VISUAL = "visual."
_NO_TENSORS = ("context_length", "vocab_size", "input_resolution")
"""Numbers that OpenAI's files list among the tensors."""


class ClipNetwork(Network):
    """The image tower of a CLIP, with a linear head on its normalized output.

    texts  the text tower with the classes' names; None where a weights file has no text tower, and in a model
           that was trained already
    """

    def __init__(self, clip: Any, *, outputs: int, channels: int, classes: tuple[str, ...]) -> None:
        super().__init__()
        self.body = clip.visual
        if channels != self.body.conv1.in_channels:
            old = self.body.conv1
            self.body.conv1 = nn.Conv2d(
                channels, old.out_channels, old.kernel_size, stride=old.stride, bias=False
            )
        self.head = nn.Linear(self.body.output_dim, outputs)
        self.pixel_mean, self.pixel_std = for_channels(_MEAN, channels), for_channels(_STD, channels)
        self.text_width = clip.token_embedding.weight.shape[1]
        if classes:
            del clip.visual
            self.texts = ClassTexts(clip, classes)

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the image's vector with the length sqrt(d); there are no taps."""
        vectors = F.normalize(self.body(inputs), dim=1)
        return vectors * vectors.shape[1] ** 0.5, ()

    @staticmethod
    def import_libraries() -> None:
        """Import open_clip in a way that works with every torch."""
        import_open_clip("a CLIP model")

    def own_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Pick the image tower out of a published file, and load the text tower.

        A file without `visual.` tensors, such as the model of an earlier run, has no text tower.
        """
        visual = {
            name.removeprefix(_VISUAL): tensor for name, tensor in tensors.items() if name.startswith(_VISUAL)
        }
        if not visual:
            self.texts = None
            return dict(tensors)
        if self.texts is not None:
            rest = {name: tensor for name, tensor in tensors.items() if not name.startswith(_VISUAL)}
            self.texts.load({name: tensor for name, tensor in rest.items() if name not in _NO_TENSORS})
        positions = visual.get("positional_embedding")
        if positions is not None and positions.shape[0] != len(self.body.positional_embedding):
            visual["positional_embedding"] = _resample_positions(positions, self.body.grid_size)
        return visual


def make_clip(config: str, spec: InputSpec, *, known_as: str) -> ClipNetwork:
    """Build a network by the name of open_clip's configuration, for images of the given shape."""
    channels, height, width = spec.image_shape(known_as)
    open_clip = import_open_clip(f"model {known_as!r}")
    return _build(open_clip.get_model_config(config), spec, (channels, height, width), known_as)


def make_tiny_clip(spec: InputSpec) -> ClipNetwork:
    """Build a CLIP of two layers and width 32 with the usual vocabulary, for tests and first trials."""
    channels, height, width = spec.image_shape(TINY)
    import_open_clip(f"model {TINY!r}")
    patch = choose_patch_size(TINY, height, width) if min(height, width) >= 14 else 2
    config = {
        "embed_dim": 32,
        "vision_cfg": {"layers": 2, "width": 32, "head_width": 16, "patch_size": patch},
        "text_cfg": {"width": 32, "heads": 2, "layers": 2},
    }
    return _build(config, spec, (channels, height, width), TINY)


def _build(config: dict[str, Any], spec: InputSpec, shape: tuple[int, int, int], name: str) -> ClipNetwork:
    from open_clip.model import CLIP

    channels, height, width = shape
    patch = config["vision_cfg"]["patch_size"]
    if height % patch or width % patch:
        raise UsageError(
            f"model {name!r} cuts images into patches of {patch}x{patch} pixels, and {height}x{width} cannot "
            f"be cut so: use a multiple of {patch} as --image-size"
        )
    vision = {**config["vision_cfg"], "image_size": (height, width)}
    clip = CLIP(**{**config, "vision_cfg": vision})
    return ClipNetwork(clip, outputs=spec.outputs, channels=channels, classes=spec.classes)


def _resample_positions(positions: Tensor, grid: tuple[int, int]) -> Tensor:
    """Interpolate the positions of patches to another grid; the first one is that of the class token."""
    first, rest = positions[:1].float(), positions[1:].float()
    side = round(len(rest) ** 0.5)
    maps = rest.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(maps, size=tuple(grid), mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([first, resized.permute(0, 2, 3, 1).reshape(grid[0] * grid[1], -1)])


def _entry(name: str, config: str, summary: str, parameters: int, *, image_size: int = 224) -> None:
    make = partial(make_clip, config, known_as=name)
    shape = (3, image_size, image_size)
    MODELS.register(name)(
        ModelEntry(make, summary, shape, parameters, image_size=image_size, pretrained=True)
    )


MODELS.register(TINY)(
    ModelEntry(
        make_tiny_clip, "CLIP of width 32, for first trials (random)", (3, 32, 32), 30_538, pretrained=True
    )
)
for _size, _config, _counts in (
    ("vit-b-32", "ViT-B-32", 87_854_346),
    ("vit-b-16", "ViT-B-16", 86_197_770),
    ("vit-l-14", "ViT-L-14", 303_973_898),
):
    _entry(f"{PREFIX}{_size}", _config, f"CLIP {_config}: weights of LAION and DataComp", _counts)
    _entry(f"{PREFIX}{_size}-quickgelu", f"{_config}-quickgelu", f"CLIP {_config}: OpenAI's weights", _counts)
