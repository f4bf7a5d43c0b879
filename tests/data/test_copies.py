"""Copies of images: found in all eight positions and at other sizes, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from unseen.data import from_arrays
from unseen.data.copies import describe_thumbnails, find_copies, make_thumbnails, number_originals
from unseen.data.images.folders import check_folder
from unseen.data.validate import check_loaded


def scene(seed: int, side: int = 64) -> Image.Image:
    """Make a smooth random picture without any symmetry."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side, side), Image.Resampling.BICUBIC)


def as_arrays(pictures: list[Image.Image], side: int = 32) -> np.ndarray:
    return np.stack(
        [np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)) for picture in pictures]
    )


def test_all_copies_of_an_image_have_its_number():
    """More equal images than `find_copies` compares, a turned one, a resized one, and flat ones."""
    first, second = scene(1), scene(2)
    same = [first, *[first] * 20, first.transpose(Image.Transpose.ROTATE_90), first.resize((48, 48))]
    flat = [Image.new("RGB", (64, 64), "white"), Image.new("RGB", (64, 64), "black")]
    numbers = number_originals(as_arrays([second, *same, *flat, flat[0]])).tolist()
    assert len({*numbers[1:24]}) == 1
    assert numbers[24] == numbers[26]
    assert len({numbers[0], numbers[1], numbers[24], numbers[25]}) == 4


@given(st.integers(0, 500), st.sampled_from(list(Image.Transpose)))
@settings(max_examples=20, deadline=None)
def test_all_eight_positions_have_the_same_description(seed, turn):
    first = scene(seed, 32)
    thumbs = make_thumbnails(as_arrays([first, first.transpose(turn), scene(seed + 1000)]))
    own, turned, other = describe_thumbnails(thumbs)
    np.testing.assert_allclose(own, turned, atol=0.01)
    assert np.linalg.norm(own - other) > 32
    assert find_copies(thumbs).tolist() == [[0, 1]]


@pytest.mark.parametrize("side", [20, 33, 150])
def test_a_resized_copy_is_found_and_nothing_else(side):
    pictures = [scene(seed) for seed in range(12)]
    pictures.append(scene(3, side).rotate(90))
    assert find_copies(make_thumbnails(as_arrays(pictures))).tolist() == [[3, 12]]


def test_empty_images_are_no_copies_of_each_other():
    assert len(find_copies(make_thumbnails(np.full((9, 20, 20, 3), 7, np.uint8)))) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two domains of 4 scenes; `b/x/p0_1` is `a/x/p0_0` turned, `a/y/p2_1` is `a/x/p2_0` smaller."""
    numbers = {"a/x": (0, 1, 2), "a/y": (4, 5), "b/x": (6, 7), "b/y": (8, 9)}
    for place, seeds in numbers.items():
        (tmp_path / place).mkdir(parents=True)
        for seed in seeds:
            scene(seed).save(tmp_path / place / f"p{seed}_0.png")
    scene(0).transpose(Image.Transpose.TRANSVERSE).save(tmp_path / "b" / "x" / "p0_1.png")
    scene(2).resize((40, 40)).save(tmp_path / "a" / "y" / "p2_1.png")
    return tmp_path


def test_the_check_warns_of_copies_that_splits_may_separate_until_groups_are_named(folder):
    across, within = check_folder(folder).warnings
    assert across.startswith(
        "1 images are in more than one domain, for example a/x/p0_0.png and b/x/p0_1.png"
    )
    assert within.startswith("2 images occur more than once") and "--group-pattern" in within
    groups, left = check_folder(folder, group_pattern=r"^(p\d+)_").warnings
    assert groups.startswith("1 groups (--group-pattern) are in more than one domain, for example in a and b")
    assert "more than one domain" in left, "the held-out domain leaks all the same"
    wrong = check_folder(folder, group_pattern=r"^(p\d+_\d)").warnings
    assert len(wrong) == 2


def test_data_in_memory_is_checked_too():
    pictures = as_arrays([scene(0), scene(1), scene(0).rotate(180)])
    data = from_arrays(pictures, list("xyx"), list("aab"))
    warnings = check_loaded(data).warnings
    assert any("sample 0 (a) and sample 2 (b)" in warning for warning in warnings)
