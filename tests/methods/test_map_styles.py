"""The arithmetic of StableFDG's style steps: statistics, centres, balance, exploration."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.methods.stablefdg.map_styles import (
    draw_balanced,
    explore_styles,
    mix_styles,
    shift_styles,
    style_centers,
    styles_of,
    summarize_styles,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def maps() -> torch.Tensor:
    return 2 * torch.randn(8, 5, 30, generator=seeded(3)) + 1


def test_summaries_are_means_and_deviations_over_images(maps):
    styles = styles_of(maps)
    torch.testing.assert_close(styles[:, 0], maps.mean(2))
    torch.testing.assert_close(styles[:, 1], maps.std(2), rtol=1e-4, atol=1e-5)
    mean, deviation = summarize_styles(styles)
    torch.testing.assert_close(mean, styles.mean(0))
    torch.testing.assert_close(deviation, styles.std(0), rtol=1e-3, atol=1e-4)
    mean, deviation = summarize_styles(styles[:1])
    assert torch.equal(mean, styles[0])
    torch.testing.assert_close(deviation, torch.full_like(mean, 1e-3)), "one image has no spread"


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_shifted_images_have_the_other_clients_styles(maps, fraction):
    foreign = torch.stack([torch.full((2, 5), 7.0), torch.zeros(2, 5)])
    found = styles_of(shift_styles(maps, foreign, fraction=fraction, generator=seeded()))
    shifted = round(fraction * len(maps))
    torch.testing.assert_close(
        found[len(maps) - shifted :], torch.full((shifted, 2, 5), 7.0), rtol=1e-4, atol=1e-4
    )
    kept = found[: len(maps) - shifted]
    if fraction == 0:
        own = {tuple(style.flatten().round(decimals=3).tolist()) for style in styles_of(maps)}
        assert {tuple(style.flatten().round(decimals=3).tolist()) for style in kept} == own
    assert not len(kept) or kept.max() < 6


def test_drawn_deviations_are_never_negative(maps):
    foreign = torch.stack([torch.zeros(2, 5), torch.ones(2, 5)])
    shifted = shift_styles(maps, foreign, fraction=1.0, generator=seeded())
    one = styles_of(maps), styles_of(shifted)
    factor = ((shifted[..., 0] - one[1][:, 0]) * (maps[..., 0] - one[0][:, 0])).sign()
    assert (factor >= 0).all(), "a negative deviation would turn maps upside down"


def test_gradients_do_not_flow_through_styles(maps):
    leaf = maps.clone().requires_grad_()
    foreign = torch.ones(2, 2, 5)
    shift_styles(leaf, foreign, fraction=1.0, generator=seeded()).sum().backward()
    own = styles_of(maps)
    noise = torch.randn(8, 2, 5, generator=seeded())
    factor = (1 + noise[:, 1]).clamp(min=0) / own[:, 1]
    torch.testing.assert_close(leaf.grad, factor[:, :, None].expand_as(maps))


@given(st.integers(1, 12), st.integers(0, 100))
def test_centers_are_means_of_the_points_next_to_their_seeds(count, seed):
    points = torch.randn(12, 3, generator=seeded(seed))
    centers = style_centers(points, count, generator=seeded(seed))
    assert centers.shape == (count, 3)
    if count == 12:
        assert {*map(tuple, centers.tolist())} == {*map(tuple, points.tolist())}
    if count == 1:
        torch.testing.assert_close(centers[0], points.mean(0))


def test_equal_points_have_equal_centers():
    points = torch.ones(6, 3)
    assert torch.equal(style_centers(points, 4, generator=seeded()), torch.ones(4, 3))


def test_separate_groups_have_one_center_each():
    points = torch.tensor([[0.0], [1.0], [100.0], [101.0], [200.0]])
    centers = style_centers(points, 3, generator=seeded()).flatten().sort().values
    torch.testing.assert_close(centers, torch.tensor([0.5, 100.5, 200.0]))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 40), st.integers(0, 9))
def test_added_images_level_the_classes_rarest_first(labels, count, seed):
    targets = torch.tensor(labels)
    added = draw_balanced(targets, count, generator=seeded(seed))
    assert len(added) == count
    before = {label: labels.count(label) for label in set(labels)}
    after = {label: before[label] + int((targets[added] == label).sum()) for label in before}
    for label, size in before.items():
        assert after[label] == size or after[label] <= min(after.values()) + 1
    assert draw_balanced(targets, 0, generator=seeded()).shape == (0,)


def test_explored_styles_are_farther_from_the_mean(maps):
    added = torch.tensor([2, 2, 5])
    whole, own, wanted = explore_styles(maps, added, level=3.0)
    assert torch.equal(whole[8:], maps[added]) and torch.equal(own[8:], own[added])
    torch.testing.assert_close(wanted[8:], 4 * own[added] - 3 * own[:8].mean(0), rtol=1e-4, atol=1e-4)
    assert torch.equal(wanted[:8], own[:8])
    assert torch.equal(explore_styles(maps, added, level=0)[2][8:], own[added])


def test_mixed_styles_lie_between_those_of_two_images(maps):
    own = styles_of(maps)
    found = styles_of(mix_styles(maps, own, own, alpha=0.5, generator=seeded()))
    assert (found <= own.amax(0) + 1e-4).all() and (found >= own.amin(0) - 1e-4).all()
    assert (found - own).abs().max() > 0.01
