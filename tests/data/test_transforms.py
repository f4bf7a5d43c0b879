"""Normalising equals the formula, keeps the memory layout and leaves tables alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.data.transforms import IMAGENET, Normalize

small = st.floats(-2, 2, width=32)
positive = st.floats(0.125, 4, width=32)


def images(channels: int = 3, *, last: bool = True) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (5, 6, 7, channels), generator=generator, dtype=torch.uint8)
    stored[0, 0, 0], stored[0, 0, 1] = 0, 255
    turned = stored.permute(0, 3, 1, 2)
    return turned if last else turned.contiguous()


def formula(inputs: torch.Tensor, normalize: Normalize) -> torch.Tensor:
    mean, std = (
        torch.tensor(values).double().view(1, -1, 1, 1) for values in (normalize.mean, normalize.std)
    )
    return (inputs.double() / 255 - mean) / std


@pytest.mark.parametrize("last", [True, False])
@given(values=st.lists(st.tuples(small, positive), min_size=3, max_size=3))
def test_one_step_and_two_steps_equal_the_formula(last: bool, values: list[tuple[float, float]]) -> None:
    normalize = Normalize(mean=tuple(mean for mean, _ in values), std=tuple(std for _, std in values))
    inputs = images(last=last)
    expected = formula(inputs, normalize)
    for result in (normalize(inputs), normalize.finish(normalize.scale(inputs))):
        assert result.dtype == torch.float32
        assert result.stride() == inputs.stride()
        torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_one_value_serves_all_channels(channels: int) -> None:
    normalize = Normalize(mean=(0.5,), std=(0.25,))
    inputs = images(channels)
    torch.testing.assert_close(normalize(inputs).double(), formula(inputs, normalize), atol=1e-5, rtol=0)


def test_scaling_reaches_exactly_zero_and_one() -> None:
    scaled = IMAGENET.scale(images())
    assert scaled.min() == 0
    assert scaled.max() == 1


def test_inputs_are_never_changed_in_place() -> None:
    inputs = images()
    before = inputs.clone()
    IMAGENET(inputs)
    scaled = IMAGENET.scale(inputs)
    kept = scaled.clone()
    IMAGENET.finish(scaled)
    assert torch.equal(inputs, before)
    assert torch.equal(scaled, kept)


def test_tables_pass_unchanged() -> None:
    rows = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    for step in (IMAGENET, IMAGENET.scale, IMAGENET.finish):
        assert step(rows) is rows


def test_float_images_are_not_normalised_by_accident() -> None:
    with pytest.raises(ValueError, match="finish"):
        IMAGENET(images().float())


def test_values_that_cannot_be_right_are_refused() -> None:
    with pytest.raises(ValueError, match="as many"):
        Normalize(mean=(0.5, 0.5), std=(1.0,))
    with pytest.raises(ValueError, match="above 0"):
        Normalize(mean=(0.5,), std=(0.0,))
    with pytest.raises(ValueError, match="2 channels"):
        IMAGENET(images(2))


def test_the_plain_form_comes_back() -> None:
    assert Normalize.from_dict(IMAGENET.to_dict()) == IMAGENET


@given(values=st.lists(st.tuples(small, positive), min_size=3, max_size=3))
def test_undoing_gives_the_scaled_image_back(values: list[tuple[float, float]]) -> None:
    normalize = Normalize(mean=tuple(mean for mean, _ in values), std=tuple(std for _, std in values))
    scaled = normalize.scale(images())
    torch.testing.assert_close(normalize.undo(normalize.finish(scaled)), scaled, atol=1e-5, rtol=1e-5)
    grey = Normalize(mean=(0.3,), std=(0.2,))
    torch.testing.assert_close(grey.undo(grey.finish(scaled)), scaled)


def test_measured_values_pass_only_where_nothing_would_change_them() -> None:
    values = torch.randn(2, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    assert Normalize()(values) is values
    assert Normalize().finish(values) is values
    with pytest.raises(ValueError, match="expected uint8 images"):
        Normalize(mean=(0.5,))(values)
