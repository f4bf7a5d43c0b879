"""Crop, flip, colour and grayscale: what they change, and by how much."""

import colorsys
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.data.augment import rotate_hues
from unseen.data.augmentation.crop_and_colour import crop, flip, grayscale, jitter_all_colours

LUMA = torch.tensor([0.299, 0.587, 0.114])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 40) -> Tensor:
    return torch.rand(count, 3, 12, 12, generator=seeded(9))


@pytest.mark.parametrize("smallest", [0.8, 0.3])
def test_a_crop_shows_at_least_the_smallest_area_and_never_mirrors(smallest: float) -> None:
    side = 64
    ramp = (torch.arange(side) + 0.5) / side
    images = torch.stack([ramp.expand(side, side), ramp.expand(side, side).T]).expand(400, -1, -1, -1)
    changed = crop(images, seeded(), smallest=smallest)
    length = ramp[-10] - ramp[10]
    width = (changed[:, 0, 5, -10] - changed[:, 0, 5, 10]) / length
    height = (changed[:, 1, -10, 5] - changed[:, 1, 10, 5]) / length
    area = width * height
    assert (width > 0).all()
    assert smallest - 0.001 < area.min() < smallest + 0.05
    assert 0.95 < area.max() < 1.001


def test_half_of_the_images_are_mirrored() -> None:
    images = pictures(400)
    changed = flip(images, seeded())
    mirrored = torch.tensor([torch.equal(new, old.flip(2)) for new, old in zip(changed, images, strict=True)])
    same = torch.tensor([torch.equal(new, old) for new, old in zip(changed, images, strict=True)])
    assert (mirrored ^ same).all()
    assert 0.4 < mirrored.float().mean() < 0.6
    assert torch.equal(flip(images, seeded(), chance=1.0), images.flip(3))


def test_every_tenth_image_is_grey_with_the_luma_of_before() -> None:
    images = pictures(400)
    changed = grayscale(images, seeded())
    grey = (changed.std(dim=1) < 1e-6).flatten(1).all(1)
    assert 0.06 < grey.float().mean() < 0.14
    luma = (images * LUMA[:, None, None]).sum(1)
    torch.testing.assert_close(changed[grey][:, 0], luma[grey])
    assert torch.equal(changed[~grey], images[~grey])


@given(st.floats(-0.5, 0.5))
def test_rotating_the_hue_keeps_luma_and_greys(turns: float) -> None:
    (matrix,) = rotate_hues(torch.tensor([turns]))
    torch.testing.assert_close(LUMA @ matrix, LUMA, atol=1e-3, rtol=0)
    torch.testing.assert_close(matrix @ torch.ones(3), torch.ones(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(
        matrix @ rotate_hues(torch.tensor([-turns]))[0], torch.eye(3), atol=1e-4, rtol=0
    )


def test_a_third_of_a_turn_moves_colours_on_the_circle() -> None:
    (matrix,) = rotate_hues(torch.tensor([1 / 3]))
    colour = torch.tensor([0.6, 0.4, 0.4])
    before, after = (colorsys.rgb_to_hsv(*values.tolist())[0] for values in (colour, matrix @ colour))
    moved = abs((after - before + 0.5) % 1 - 0.5)
    assert 0.25 < moved < 0.42


def literal_jitter(image: Tensor, draw: list[float], strength: float, hue: float) -> Tensor:
    """Rotate the hue, then change saturation, contrast and brightness, one after the other."""
    to_yiq = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    brightness, contrast, saturation = (1 + strength * (2 * value - 1) for value in draw[:3])
    angle = 2 * math.pi * hue * (2 * draw[3] - 1)
    y, i, q = torch.einsum("ac,chw->ahw", to_yiq, image)
    turned = torch.stack(
        [y, math.cos(angle) * i - math.sin(angle) * q, math.sin(angle) * i + math.cos(angle) * q]
    )
    image = torch.einsum("ac,chw->ahw", to_yiq.inverse(), turned)
    image = saturation * image + (1 - saturation) * (image * LUMA[:, None, None]).sum(0)
    image = contrast * image + (1 - contrast) * (image * LUMA[:, None, None]).sum(0).mean()
    return (brightness * image).clamp(0, 1)


def test_colour_equals_its_steps_in_turn() -> None:
    images = pictures()
    changed = jitter_all_colours(images, seeded(3), strength=0.3, hue=0.2)
    draws = torch.rand(40, 4, generator=seeded(3)).tolist()
    for image, result, draw in zip(images, changed, draws, strict=True):
        torch.testing.assert_close(result, literal_jitter(image, draw, 0.3, 0.2), atol=1e-3, rtol=0)


def test_hue_changes_colours_but_not_brightness() -> None:
    images = 0.3 + 0.4 * pictures()
    changed = jitter_all_colours(images, seeded(), strength=0.0, hue=0.1)
    luma = [(batch * LUMA[:, None, None]).sum(1) for batch in (images, changed)]
    torch.testing.assert_close(*luma, atol=2e-3, rtol=0)
    assert (changed - images).abs().mean() > 0.01
