"""TrivialAugment, RandAugment, AugMix: one operation per image, two in a row, blended chains."""

import torch
from torch import Tensor

from unseen.data.augmentation.pixel_operations import apply_operations
from unseen.data.augmentation.policies import (
    NARROW,
    UNLIKE_CORRUPTIONS,
    WIDE,
    Space,
    augmix,
    rand_augment,
    trivial_augment,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 24) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=seeded(9))


def one_operation(space: Space, image: Tensor, magnitude: float, draw: list[float]) -> Tensor:
    """Apply one drawn operation to one image, step by step."""
    place = int(draw[0] * len(space.operations))
    name, (start, change, signed) = space.operations[place], space.ranges[space.operations[place]]
    strength = start + (-1 if signed and draw[1] < 0.5 else 1) * change * magnitude
    changed = image[None].clone()
    apply_operations(changed, (name,), torch.tensor([0]), torch.tensor([strength]))
    return changed[0]


def test_the_wide_space_has_the_published_range() -> None:
    assert len(WIDE.operations) == len(NARROW.operations) == 14
    assert WIDE.ranges["rotate"] == (0, 135, True)
    assert NARROW.ranges["shear-x"] == (0, 0.3, True)
    assert WIDE.ranges["posterize"] == (8, -6, False)
    assert not {"brightness", "colour", "contrast", "sharpness"} & set(UNLIKE_CORRUPTIONS.operations)


def test_trivial_augment_is_one_operation_of_random_strength() -> None:
    images = pictures()
    ours = trivial_augment(images, seeded(1))
    for image, changed, draw in zip(
        images, ours, torch.rand(24, 3, generator=seeded(1)).tolist(), strict=True
    ):
        expected = one_operation(WIDE, image, int(draw[2] * 31) / 30, draw)
        torch.testing.assert_close(changed, expected, atol=1e-5, rtol=0)


def test_rand_augment_is_two_operations_in_a_row_at_a_fixed_magnitude() -> None:
    images = pictures()
    ours = rand_augment(images, seeded(1), operations=2, magnitude=12)
    draws = torch.rand(2, 24, 2, generator=seeded(1))
    for number, (image, changed) in enumerate(zip(images, ours, strict=True)):
        expected = image
        for draw in draws[:, number].tolist():
            expected = one_operation(NARROW, expected, 12 / 30, draw)
        torch.testing.assert_close(changed, expected, atol=1e-4, rtol=0)


def test_augmix_is_a_blend_of_the_image_and_its_chains() -> None:
    images, draw = pictures(), seeded(1)
    ours = augmix(images, seeded(1), severity=3, width=2)
    weights = -torch.rand(24, 2, generator=draw).log()
    weights = weights / weights.sum(1, keepdim=True)
    blend = torch.rand(24, 1, generator=draw)
    draws = torch.rand(3, 48, 3, generator=draw)
    length = 1 + (3 * torch.rand(48, generator=draw)).long()
    for number, image in enumerate(images):
        mixed = torch.zeros_like(image)
        for chain in range(2):
            place, changed = chain * 24 + number, image
            for each in draws[: length[place], place].tolist():
                changed = one_operation(UNLIKE_CORRUPTIONS, changed, (0.1 + 2.9 * each[2]) / 10, each)
            mixed += weights[number, chain] * changed
        expected = (1 - blend[number]) * image + blend[number] * mixed
        torch.testing.assert_close(ours[number], expected, atol=1e-4, rtol=0)
    assert (ours - images).abs().mean() > 0.01
