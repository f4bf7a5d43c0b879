"""Every operation of the policies equals torchvision's or Pillow's on the same image."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

from unseen.data.augmentation.pixel_operations import COLOUR, GEOMETRIC, PIXELWISE, apply_operations
from unseen.models.torchvision_compat import import_torchvision

import_torchvision("the comparison with its operations")
from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms import functional as tv  # noqa: E402

OPERATIONS = (*GEOMETRIC, *COLOUR, *PIXELWISE)
STRENGTHS = {
    "shear-x": 0.3, "shear-y": -0.4, "translate-x": 0.25, "translate-y": -0.125, "rotate": 33.0,
    "brightness": 1.4, "contrast": 0.4, "colour": 1.7, "sharpness": 1.8, "posterize": 3.0, "solarize": 0.6,
    "autocontrast": 0.0, "equalize": 0.0,
}  # fmt: skip


def photographs(count: int = 2, height: int = 24, width: int = 32) -> Tensor:
    """Images of 256 levels, not the whole range of them."""
    draws = np.random.default_rng(5)
    levels = draws.normal(120, 30, (count, 3, height, width)).clip(20, 230).round()
    return torch.from_numpy(levels.astype(np.float32) / 255)


def operate(name: str, images: Tensor, strength: float) -> Tensor:
    changed = images.clone()
    apply_operations(
        changed, (name,), torch.zeros(len(images), dtype=torch.long), torch.full((len(images),), strength)
    )
    return changed


def literal(name: str, image: Tensor, value: float) -> Tensor:
    height, width = image.shape[-2:]

    def affine(
        angle: float = 0.0, translate: tuple[int, int] = (0, 0), shear: tuple[float, float] = (0.0, 0.0)
    ) -> Tensor:
        return tv.affine(image, angle, list(translate), 1.0, list(shear), InterpolationMode.NEAREST)

    def through_pillow(change) -> Tensor:
        pixels = Image.fromarray((image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
        return torch.from_numpy(np.array(change(pixels))).permute(2, 0, 1) / 255

    degrees = float(np.degrees(np.arctan(value)))
    return {
        "shear-x": lambda: affine(shear=(-degrees, 0.0)),
        "shear-y": lambda: affine(shear=(0.0, -degrees)),
        "translate-x": lambda: affine(translate=(round(value * width), 0)),
        "translate-y": lambda: affine(translate=(0, round(value * height))),
        "rotate": lambda: tv.rotate(image, value, InterpolationMode.NEAREST),
        "brightness": lambda: tv.adjust_brightness(image, value),
        "contrast": lambda: tv.adjust_contrast(image, value),
        "colour": lambda: tv.adjust_saturation(image, value),
        "sharpness": lambda: tv.adjust_sharpness(image, value),
        "posterize": lambda: through_pillow(lambda pixels: ImageOps.posterize(pixels, int(value))),
        "solarize": lambda: tv.solarize(image, value),
        "autocontrast": lambda: tv.autocontrast(image),
        "equalize": lambda: through_pillow(ImageOps.equalize),
    }[name]()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_equals_the_slow_one(name: str) -> None:
    images = photographs()
    ours = operate(name, images, STRENGTHS[name])
    assert not torch.equal(ours, images)
    for image, mine in zip(images, ours, strict=True):
        theirs = literal(name, image, STRENGTHS[name])
        if name in GEOMETRIC:
            same = ((mine - theirs).abs() < 1e-6).float().mean()
            assert same > 0.98, "nearest pixels may differ where two are equally near"
        else:
            torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", OPERATIONS)
def test_zero_strength_changes_nothing(name: str) -> None:
    neutral = {"posterize": 8.0, "solarize": 1.1} | dict.fromkeys((*COLOUR, "sharpness"), 1.0)
    if name in ("autocontrast", "equalize"):
        flat = torch.full((1, 3, 8, 8), 0.4)
        torch.testing.assert_close(operate(name, flat, 0.0), flat, atol=1e-6, rtol=0)
    else:
        images = photographs()
        torch.testing.assert_close(operate(name, images, neutral.get(name, 0.0)), images, atol=1e-6, rtol=0)


@given(st.lists(st.integers(-1, len(OPERATIONS) - 1), min_size=1, max_size=20))
def test_grouping_images_by_operation_equals_one_by_one(chosen: list[int]) -> None:
    images = photographs(len(chosen), 12, 12)
    strength = torch.tensor([STRENGTHS[OPERATIONS[place]] for place in chosen])
    together = images.clone()
    apply_operations(together, OPERATIONS, torch.tensor(chosen), strength)
    for place, image, changed in zip(chosen, images, together, strict=True):
        name = OPERATIONS[place]
        alone = image[None] if place < 0 else operate(name, image[None], STRENGTHS[name])
        torch.testing.assert_close(changed[None], alone, atol=1e-6, rtol=0)
