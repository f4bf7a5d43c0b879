"""The vector is the module's state, exactly, whatever the module is made of."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from unseen.errors import UnseenError
from unseen.models import FlatState, InputSpec, Kind, Layout, build_model

Shape = tuple[int, ...]


class Odd(nn.Module):
    """Has all that is unusual: a scalar, a frozen and a tied parameter, tied and whole-number buffers."""

    def __init__(self, shapes: list[Shape]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(len(shapes))
        self.many = nn.ParameterList(
            nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes
        )
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(2)
        self.inner = nn.Module()
        self.register_buffer("shared", torch.tensor([1.5, 2.5]))
        self.inner.register_buffer("shared_too", self.shared)
        self.register_buffer("temporary", torch.ones(4), persistent=False)
        self.register_buffer("flags", torch.tensor([True, False]))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.second(torch.relu(self.first(inputs)))) + self.shared
        extra = sum((parameter.square().sum() for parameter in self.many), self.scalar * self.frozen.sum())
        return hidden.sum() + extra


class Convolutional(nn.Module):
    """Grey images through convolutions, grouped too, with batch norm."""

    def __init__(self, width: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width * groups, kernel, padding=kernel // 2),
            nn.BatchNorm2d(width * groups),
            nn.ReLU(inplace=True),
            nn.Conv2d(width * groups, 2 * groups, 3, groups=groups, bias=False),
            nn.Flatten(),
            nn.LazyLinear(3),
        )
        self.layers(torch.zeros(2, 1, 8, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).square().sum()


def gradients_of(module: nn.Module, layout: Layout) -> Tensor:
    """Concatenate plain autograd gradients in the order of the layout."""
    vector = torch.zeros(layout.size)
    named = dict(module.named_parameters())
    for entry in layout.entries:
        if entry.kind is Kind.PARAMETER and named[entry.name].grad is not None:
            entry.view(vector).copy_(named[entry.name].grad)
    return vector[layout.extent(Kind.PARAMETER)]


def assert_same_state(one: nn.Module, other: nn.Module) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype
        assert torch.equal(tensor, second[name]), name


shapes = st.lists(st.lists(st.integers(0, 4), max_size=5).map(tuple), max_size=4)


@given(shapes)
def test_any_module_behaves_as_before_and_its_vector_carries_its_state(shapes: list[Shape]) -> None:
    plain = Odd(shapes)
    bound = copy.deepcopy(plain)
    flat = FlatState(bound)
    assert_same_state(plain, bound)
    inputs = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    plain(inputs).backward()
    bound(inputs).backward()
    assert_same_state(plain, bound)
    assert torch.equal(flat.gradient, gradients_of(plain, flat.layout))
    fresh = Odd(shapes)
    with torch.no_grad():
        fresh.scalar.add_(1)
    FlatState(fresh).load(flat.read())
    assert_same_state(fresh, plain)
    restored = Odd(shapes)
    restored.load_state_dict(flat.layout.tensors(flat.read()))
    assert_same_state(restored, plain)


@given(st.integers(1, 4), st.sampled_from([1, 3, 5]), st.integers(1, 3))
def test_convolutions_train_alike_bound_and_plain(width: int, kernel: int, groups: int) -> None:
    plain = Convolutional(width, kernel, groups)
    bound = copy.deepcopy(plain)
    flat = FlatState(bound)
    inputs = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    loss, bound_loss = plain(inputs), bound(inputs)
    loss.backward()
    bound_loss.backward()
    torch.testing.assert_close(bound_loss, loss)
    expected = gradients_of(plain, flat.layout)
    torch.testing.assert_close(flat.gradient, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert bool(flat.gradient.any())


def test_a_step_on_the_vector_is_a_step_of_the_module() -> None:
    plain = Convolutional(2, 3, 1)
    flat = FlatState(copy.deepcopy(plain))
    inputs = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01)
    for _ in range(3):
        optimiser.zero_grad()
        plain(inputs).backward()
        optimiser.step()
        flat.gradient.zero_()
        flat.module(inputs).backward()
        flat.parameters.sub_(flat.gradient, alpha=0.01)
    for name, tensor in flat.module.state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_batch_norm_writes_its_statistics_into_the_vector() -> None:
    flat = FlatState(nn.BatchNorm2d(3))
    before = flat.read()
    flat.module(torch.randn(4, 3, 5, 5) + 2)
    after = flat.read()
    buffers, counters = flat.layout.extent(Kind.FLOAT_BUFFER), flat.layout.extent(Kind.INTEGER_BUFFER)
    assert not torch.equal(before[buffers], after[buffers])
    assert after[counters].tolist() == [1.0]
    assert torch.equal(before[flat.layout.extent(Kind.PARAMETER)], after[flat.layout.extent(Kind.PARAMETER)])


@given(st.integers(0, 2**24))
def test_counters_travel_exactly(count: int) -> None:
    norm = nn.BatchNorm1d(2)
    norm.num_batches_tracked.fill_(count)
    other = FlatState(nn.BatchNorm1d(2))
    other.load(FlatState(norm).read())
    assert int(other.module.num_batches_tracked) == count
    assert int(other.layout.tensors(other.read())["num_batches_tracked"]) == count


def test_a_counter_that_floats_cannot_hold_is_refused() -> None:
    flat = FlatState(nn.BatchNorm1d(2))
    flat.module.num_batches_tracked.fill_(2**24 + 1)
    with pytest.raises(UnseenError, match="num_batches_tracked"):
        flat.read()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64])
def test_other_number_formats_are_refused(dtype: torch.dtype) -> None:
    module = nn.Module()
    module.register_parameter("weight", nn.Parameter(torch.zeros(2, dtype=dtype)))
    with pytest.raises(UnseenError, match=r"'weight' is \w+; a flat state is float32"):
        FlatState(module)


def test_a_module_without_state_has_an_empty_vector() -> None:
    flat = FlatState(nn.ReLU())
    assert flat.read().shape == (0,)
    flat.load(torch.zeros(0))


def test_a_tied_parameter_lies_once_and_stays_tied() -> None:
    flat = FlatState(Odd([]))
    assert [entry.name for entry in flat.layout.entries].count("first.weight") == 1
    assert ("second.weight", "first.weight") in flat.layout.aliases
    assert flat.module.first.weight is flat.module.second.weight
    flat.load(torch.full_like(flat.vector, 3.0))
    assert flat.module.inner.shared_too.tolist() == flat.module.shared.tolist() == [3.0, 3.0]


def test_frozen_parameters_keep_a_zero_gradient() -> None:
    flat = FlatState(Odd([]))
    flat.module(torch.randn(4, 2)).backward()
    place = next(entry.slice for entry in flat.layout.entries if entry.name == "frozen")
    assert flat.gradient[place].tolist() == [0.0, 0.0, 0.0]


def test_a_state_of_another_length_is_refused() -> None:
    flat = FlatState(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="length 5 does not fit a model of length 6"):
        flat.load(torch.zeros(5))


def test_deep_copies_do_not_alias_the_vector() -> None:
    flat = FlatState(Convolutional(2, 3, 1))
    before = flat.read()
    module = copy.deepcopy(flat.module)
    twin = copy.deepcopy(flat)
    assert torch.equal(twin.read(), before)
    for copied in (module, twin.module):
        copied(torch.randn(4, 1, 8, 8))
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.add_(1)
    assert torch.equal(flat.read(), before)
    assert not torch.equal(twin.read(), before)


def test_binding_to_given_storage() -> None:
    storage = torch.zeros(6).share_memory_()
    module = nn.Linear(2, 2)
    expected = FlatState(copy.deepcopy(module)).read()
    flat = FlatState(module, storage=storage)
    assert torch.equal(storage, expected)
    storage.fill_(2)
    assert module.weight.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert flat.vector.data_ptr() == storage.data_ptr()
    with pytest.raises(ValueError, match="contiguous float32 vector of length 6"):
        FlatState(module, storage=torch.zeros(12)[::2])


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_weights_and_activations_are_channels_last(shape: tuple[int, int, int]) -> None:
    network = build_model("customnet", InputSpec(shape, 4), seed=0)
    FlatState(network)
    seen: list[Tensor] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.MaxPool2d):
            assert all(
                part.is_contiguous(memory_format=torch.channels_last)
                for part in module.parameters()
                if part.ndim == 4
            )
            module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    channels, height, width = shape
    stored = torch.randint(0, 256, (8, height, width, channels), dtype=torch.uint8)
    network(stored.permute(0, 3, 1, 2).float() / 255).sum().backward()
    assert len(seen) == 4
    assert all(output.is_contiguous(memory_format=torch.channels_last) for output in seen)
    assert not any(output.is_contiguous() for output in seen)


def test_the_digest_tells_models_apart() -> None:
    three, four = (build_model("lenet", InputSpec((1, 28, 28), outputs), seed=0) for outputs in (3, 4))
    assert Layout.of(three).digest == Layout.of(copy.deepcopy(three)).digest
    assert Layout.of(three).digest != Layout.of(four).digest
