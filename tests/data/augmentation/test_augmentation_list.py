"""A list of augmentations: names joined by +, settings after colons, targets mixed where images are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from unseen.data.augment import AUGMENTATIONS
from unseen.data.augmentation import Mixed, augment_batch, parse_augmentations, settings_of
from unseen.data.augmentation.augmentation_list import mix_targets
from unseen.errors import UsageError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 8) -> torch.Tensor:
    return torch.rand(count, 3, 12, 12, generator=seeded(9))


def test_steps_are_applied_in_order_with_one_generator() -> None:
    images, targets = pictures(), torch.arange(8) % 3
    ours, _ = augment_batch(parse_augmentations("crop:0.5+flip:1+colour").steps, images, targets, seeded())
    draw = seeded()
    expected = AUGMENTATIONS["crop"](images, draw, smallest=0.5)
    expected = AUGMENTATIONS["flip"](expected, draw, chance=1.0)
    expected = AUGMENTATIONS["colour"](expected, draw)
    assert torch.equal(ours, expected)
    other, _ = augment_batch(parse_augmentations("colour+flip:1+crop:0.5").steps, images, targets, seeded())
    assert not torch.equal(ours, other)


@given(st.lists(st.sampled_from(sorted(AUGMENTATIONS)), min_size=1, max_size=5))
def test_every_step_of_a_list_has_its_level(names: list[str]) -> None:
    steps = parse_augmentations("+".join(names))
    assert [step.name for step in steps.steps] == [name for name in names if name != "none"]
    levels = ("images", "stages", "features", "logits")
    assert sorted(s.name for level in levels for s in steps.at(level)) == sorted(s.name for s in steps.steps)
    assert len(steps.in_network) + len(steps.at("images")) == len(steps.steps)


def test_what_mixes_samples_and_what_mixes_targets() -> None:
    every = parse_augmentations("+".join(AUGMENTATIONS))
    assert every.mixing_samples == "amplitude-mix, cutmix, dsu, efdmix, mixstyle, mixup, rsc"
    assert every.mixing_targets == "cutmix, mixup"
    assert parse_augmentations("none").steps == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("standard+mixstile", "unknown augmentation 'mixstile'. Did you mean 'mixstyle'?"),
        ("standard+", "lacks a name"),
        ("crop:0", "'smallest' of augmentation 'crop' must be a number from 0.01 to 1, not '0'"),
        ("crop:big", "not 'big'"),
        ("crop:nan", "not 'nan'"),
        ("rand-augment:2.5", "'operations' of augmentation 'rand-augment' must be a whole number"),
        ("rand-augment:1:2:3", "takes 2 values (operations, magnitude), not 3"),
        ("standard:1", "'standard' takes no value, not 1: standard:1"),
    ],
)
def test_a_wrong_list_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        AUGMENTATIONS.check(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_defaults_are_within_their_bounds(name: str) -> None:
    for key, default, bounds in settings_of(AUGMENTATIONS[name]):
        assert bounds.low <= default <= bounds.high, key
        assert bounds.meaning


@given(seed=st.integers(0, 2**31), smoothing=st.sampled_from([0.0, 0.1]))
def test_the_loss_of_mixed_targets_is_the_two_label_cross_entropy(seed: int, smoothing: float) -> None:
    draw = seeded(seed)
    logits, targets = torch.randn(6, 4, generator=draw), torch.randint(4, (6,), generator=draw)
    mixed = Mixed(pictures(6), torch.randperm(6, generator=draw), torch.rand(6, generator=draw))
    ours = F.cross_entropy(logits, mix_targets(mixed, targets, classes=4), label_smoothing=smoothing)
    one = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
    other = F.cross_entropy(logits, targets[mixed.partner], label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(ours, (mixed.share * one + (1 - mixed.share) * other).mean())


def test_mixing_twice_mixes_probabilities() -> None:
    images, targets = pictures(), torch.arange(8) % 3
    _, mixed = augment_batch(
        parse_augmentations("mixup:1+cutmix").steps, images, targets, seeded(), classes=3
    )
    assert mixed.shape == (8, 3)
    torch.testing.assert_close(mixed.sum(1), torch.ones(8))
    _, values = augment_batch(parse_augmentations("mixup:1").steps, images, targets.float(), seeded())
    assert values.shape == (8,)
    assert not torch.equal(values, targets.float())
