"""Augmentation: a pure function of its generator, different for every image, inside 0..1, as described."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.data.augment import AUGMENTATIONS, crop_and_flip, jitter_colours, shift
from unseen.data.augmentation import Mixed
from unseen.data.augmentation.augmentation_list import Step
from unseen.errors import UsageError

NAMES = tuple(name for name in AUGMENTATIONS if Step(name, AUGMENTATIONS[name]).traits.level == "images")
CHANGING = tuple(name for name in NAMES if name not in ("none", "flip", "grayscale"))
"""Names that change every image, apart from chance."""
ALONE = tuple(name for name in CHANGING if not Step(name, AUGMENTATIONS[name]).traits.mixes_samples)


def change(name: str, images: Tensor, generator: torch.Generator) -> Tensor:
    """Augment a batch; leave the targets aside."""
    changed = AUGMENTATIONS[name](images, generator)
    return changed.images if isinstance(changed, Mixed) else changed


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 16, channels: int = 3, side: int = 12) -> Tensor:
    return torch.rand(count, side, side, channels, generator=seeded(9)).permute(0, 3, 1, 2)


def test_the_known_names() -> None:
    policies, mixing = {"augmix", "rand-augment", "trivial-augment"}, {"amplitude-mix", "cutmix", "mixup"}
    single = {"none", "standard", "crop-flip", "shift", "crop", "flip", "colour", "grayscale"}
    assert set(NAMES) == single | policies | mixing
    assert set(AUGMENTATIONS) - set(NAMES) == {"mixstyle", "efdmix", "dsu", "rsc", "sd"}
    with pytest.raises(UsageError, match="standard"):
        AUGMENTATIONS["standart"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_pure_function_of_the_generator(name: str, channels: int) -> None:
    images = pictures(channels=channels)
    before, state = images.clone(), torch.random.get_rng_state()
    first, again, other = (change(name, images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(images, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first, again)
    assert torch.equal(first, other) == (name == "none" or (name == "grayscale" and channels == 1))
    assert first.shape == images.shape
    assert first.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ALONE)
def test_every_image_gets_its_own_draw(name: str) -> None:
    same = pictures(1).expand(16, -1, -1, -1)
    changed = change(name, same, seeded())
    distinct = len({tuple(image.flatten().tolist()) for image in changed})
    assert distinct == 16 if name not in ("trivial-augment", "rand-augment") else distinct > 8


@pytest.mark.parametrize("name", [*ALONE, "flip", "grayscale"])
def test_what_becomes_of_an_image_does_not_depend_on_the_others(name: str) -> None:
    images, others = pictures(), pictures().flip(0)
    others[3] = images[3]
    one, other = (change(name, batch, seeded(4))[3] for batch in (images, others))
    torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["amplitude-mix", "cutmix", "mixup"])
def test_mixing_takes_from_other_images(name: str) -> None:
    images, others = pictures(), pictures()
    others[4:] = 1 - others[4:]
    one, other = (change(name, batch, seeded(4)) for batch in (images, others))
    assert any(not torch.equal(mine, yours) for mine, yours in zip(one[:4], other[:4], strict=True))


@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**31), level=st.sampled_from([0.0, 0.5, 1.0]))
def test_values_stay_between_0_and_1(name: str, seed: int, level: float) -> None:
    for images in (pictures(4), torch.full((4, 3, 12, 12), level)):
        changed = change(name, images, seeded(seed))
        assert changed.min() >= 0
        assert changed.max() <= 1


def test_cropping_shows_a_window_of_80_to_100_percent_and_mirrors_half() -> None:
    side = 64
    ramp = (torch.arange(side) + 0.5) / side
    across = ramp.expand(side, side)
    images = torch.stack([across, across.T, torch.ones(side, side)]).expand(500, -1, -1, -1)
    changed = crop_and_flip(images, seeded())
    slope_x = (changed[:, 0, 5, -10] - changed[:, 0, 5, 10]) / (ramp[-10] - ramp[10])
    slope_y = (changed[:, 1, -10, 5] - changed[:, 1, 10, 5]) / (ramp[-10] - ramp[10])
    area, ratio = slope_x.abs() * slope_y, slope_x.abs() / slope_y
    assert 0.4 < (slope_x < 0).float().mean() < 0.6
    assert area.max() <= 1.001
    assert area.min() > 0.799
    assert area.max() - area.min() > 0.15
    assert ratio.min() > 0.74
    assert ratio.max() < 1.35
    assert (changed[:, 2] > 0.99).all()


def test_an_image_that_is_the_same_everywhere_survives_cropping() -> None:
    flat = torch.full((20, 3, 16, 16), 0.3)
    torch.testing.assert_close(crop_and_flip(flat, seeded()), flat)


def test_shifting_moves_by_at_most_a_tenth_and_brings_in_black() -> None:
    side = 40
    dot = torch.zeros(200, 1, side, side)
    dot[:, :, 18:22, 18:22] = 1
    changed = shift(dot, seeded())
    place = torch.arange(side, dtype=torch.float32)
    for axis in (2, 3):
        weight = changed.sum(dim=5 - axis)[:, 0]
        moved = (weight * place).sum(1) / weight.sum(1) - 19.5
        assert moved.abs().max() <= 4.01
        assert moved.min() < -3
        assert moved.max() > 3
    edges = shift(torch.ones(50, 1, side, side), seeded())
    assert (edges[:, 0].amin(dim=(1, 2)) < 1).any()


def literal_jitter(
    image: Tensor, brightness: float, contrast: float, saturation: float, *, grey: bool
) -> Tensor:
    """Apply the steps one after the other, as one would on paper, without clamping between."""
    luma = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    image = image * brightness
    mean = (image * luma).sum(0).mean()
    image = contrast * image + (1 - contrast) * mean
    image = saturation * image + (1 - saturation) * (image * luma).sum(0)
    if grey:
        image = (image * luma).sum(0).expand(3, -1, -1)
    return image.clamp(0, 1)


def test_colour_jitter_equals_its_steps_in_turn() -> None:
    images = pictures(40)
    changed = jitter_colours(images, seeded(3))
    draw = torch.rand(40, 4, generator=seeded(3))
    greys = 0
    for image, result, (first, second, third, last) in zip(images, changed, draw.tolist(), strict=True):
        factors = [0.6 + 0.8 * value for value in (first, second, third)]
        torch.testing.assert_close(
            result, literal_jitter(image, *factors, grey=last < 0.1), atol=1e-5, rtol=1e-5
        )
        greys += torch.allclose(result[0], result[1], atol=1e-6)
    assert 1 <= greys <= 12


def test_one_channel_images_keep_their_shape_under_jitter() -> None:
    images = pictures(8, channels=1)
    changed = jitter_colours(images, seeded())
    assert changed.shape == images.shape
    assert not torch.equal(changed, images)
