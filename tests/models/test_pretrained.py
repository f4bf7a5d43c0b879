"""Weights files: all of the extractor or nothing, and every misfit said in one line."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models import FlatState, InputSpec, Network, build_model, load_weights

needs_zoo = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")


def make(
    name: str = "mnist-cnn", shape: tuple[int, ...] = (1, 28, 28), outputs: int = 5, seed: int = 0
) -> Network:
    return build_model(name, InputSpec(shape, outputs), seed=seed)


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def state(network: Network) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def assert_refused(network: Network, path: Path, message: str) -> None:
    before = state(network)
    with pytest.raises(UnseenError, match=message) as caught:
        load_weights(network, path)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_our_own_file_loads_whole(tmp_path: Path) -> None:
    source, target = make(seed=1), make(seed=2)
    report = load_weights(target, save(tmp_path / "w.safetensors", state(source)))
    assert report.head_loaded
    assert set(report.loaded) == set(target.state_dict())
    assert all(torch.equal(tensor, state(source)[name]) for name, tensor in target.state_dict().items())


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_torch_files_load_too(tmp_path: Path, wrapper: str | None) -> None:
    source, target = make(seed=1), make(seed=2)
    tensors = {f"module.{name}": tensor for name, tensor in state(source).items()}
    torch.save({wrapper: tensors, "epoch": 3} if wrapper else tensors, tmp_path / "w.pth")
    load_weights(target, tmp_path / "w.pth")
    assert all(torch.equal(tensor, state(source)[name]) for name, tensor in target.state_dict().items())


@pytest.mark.parametrize(
    ("outputs", "said"), [(9, "the file's has 9 outputs, this model 5"), (0, "has none")]
)
def test_a_head_that_does_not_fit_stays_fresh_and_is_reported(
    tmp_path: Path, outputs: int, said: str
) -> None:
    tensors = state(make(outputs=outputs or 5, seed=1))
    if not outputs:
        del tensors["head.weight"], tensors["head.bias"]
    target = make(seed=2)
    head = target.head.weight.clone()
    report = load_weights(target, save(tmp_path / "w.safetensors", tensors))
    assert not report.head_loaded
    assert any(said in note for note in report.notes())
    assert torch.equal(target.head.weight, head)
    assert torch.equal(target.get_parameter("stages.conv1.0.weight"), tensors["stages.conv1.0.weight"])


def test_build_model_passes_the_notes_on(tmp_path: Path) -> None:
    path = save(tmp_path / "w.safetensors", state(make(outputs=9)))
    network = build_model("mnist-cnn", InputSpec((1, 28, 28), 5), seed=0, weights=path)
    assert any("head starts fresh" in note for note in network.notes)


def test_a_bound_network_stays_bound(tmp_path: Path) -> None:
    source, target = make(seed=1), make(seed=2)
    flat = FlatState(target)
    load_weights(target, save(tmp_path / "w.safetensors", state(source)))
    assert torch.equal(flat.read(), FlatState(source).read())


def test_colour_weights_meet_a_grey_picture_as_three_equal_channels(tmp_path: Path) -> None:
    colour, grey = make(shape=(3, 28, 28), seed=1).eval(), make(seed=2).eval()
    report = load_weights(grey, save(tmp_path / "w.safetensors", state(colour)))
    assert len(report.adapted) == 1
    picture = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(grey(picture), colour(picture.expand(-1, 3, -1, -1)))


def test_another_architecture_is_refused_with_counts(tmp_path: Path) -> None:
    path = save(tmp_path / "w.safetensors", state(make("lenet")))
    assert_refused(
        make(), path, "0 of 6 tensors match by name and shape.* first mismatch: 'stages.conv1.0.weight'"
    )


def test_a_deeper_architecture_is_refused_although_all_of_ours_is_there(tmp_path: Path) -> None:
    tensors = state(make()) | {"stages.conv3.0.weight": torch.zeros(1)}
    path = save(tmp_path / "w.safetensors", tensors)
    assert_refused(
        make(), path, "6 of 6 tensors match.*'stages.conv3.0.weight' of the file is not in the model"
    )


def test_another_image_size_is_refused_with_both_shapes(tmp_path: Path) -> None:
    path = save(tmp_path / "w.safetensors", state(make(shape=(1, 32, 32))))
    assert_refused(make(), path, "100x1600 in the file and 100x1024 in the model")


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    tensors = state(make())
    tensors["head.bias"][2] = float("nan")
    assert_refused(
        make(), save(tmp_path / "w.safetensors", tensors), "'head.bias' holds values that are not finite"
    )


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    network = make()
    assert_refused(network, tmp_path / "none.safetensors", "no such weights file")
    for name, message in (
        ("w.safetensors", "not a readable safetensors file"),
        ("w.pt", "not a torch file of plain tensors"),
        ("w.h5", "unknown type"),
    ):
        (tmp_path / name).write_bytes(b"this is no weights file at all")
        assert_refused(network, tmp_path / name, message)
    torch.save([1, 2], tmp_path / "list.pt")
    assert_refused(network, tmp_path / "list.pt", "holds no {name: tensor} table")
    torch.save(make(), tmp_path / "pickled.pt")
    assert_refused(network, tmp_path / "pickled.pt", "not a torch file of plain tensors")


@needs_zoo
def test_torchvision_names_load_with_another_head(tmp_path: Path) -> None:
    from unseen.models.torchvision_compat import import_torchvision

    import_torchvision("the test")
    from torchvision.models import resnet18

    source = resnet18(weights=None, num_classes=5)
    path = save(tmp_path / "w.safetensors", dict(source.state_dict()))
    same, other = make("resnet18", (3, 64, 64), outputs=5), make("resnet18", (3, 64, 64), outputs=7)
    assert load_weights(same, path).head_loaded
    assert not load_weights(other, path).head_loaded
    picture = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(same.eval()(picture), source.eval()(picture))


@needs_zoo
def test_a_transformer_brings_its_positions_to_another_image_size(tmp_path: Path) -> None:
    path = save(tmp_path / "w.safetensors", state(make("vit-tiny", (3, 32, 32), seed=1)))
    target = make("vit-tiny", (3, 48, 48), seed=2)
    report = load_weights(target, path)
    assert report.adapted == ("body.pos_embed was interpolated from 65 to 145 positions",)


@needs_zoo
@pytest.mark.real_data
@pytest.mark.skipif("UNSEEN_DATA" not in os.environ, reason="UNSEEN_DATA is not set")
def test_imagenet_features_load_into_resnet18_but_for_its_head() -> None:
    path = Path(os.environ["UNSEEN_DATA"]) / "weights" / "resnet18_imagenet_features.safetensors"
    if not path.is_file():
        pytest.skip(f"{path.name} is not under UNSEEN_DATA")
    network = make("resnet18", (3, 64, 64), outputs=7)
    report = load_weights(network, path)
    assert set(network.state_dict()) - set(report.loaded) == {"head.weight", "head.bias"}
    assert not report.adapted
    assert_refused(make("resnet50", (3, 64, 64)), path, "tensors match by name and shape")


def test_half_precision_is_loaded_as_float32(tmp_path: Path) -> None:
    source, target = make(seed=1), make(seed=2)
    half = {name: tensor.half() for name, tensor in state(source).items()}
    load_weights(target, save(tmp_path / "w.safetensors", half))
    for name, tensor in target.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, half[name].float())


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in the same order, under names that say nothing but their kind."""
    return {f"t{number}.{name.rpartition('.')[2]}": tensors[name] for number, name in enumerate(tensors)}


@pytest.mark.parametrize(("shape", "outputs"), [((1, 28, 28), 5), ((1, 28, 28), 9), ((3, 28, 28), 5)])
def test_other_names_in_the_same_order_load(tmp_path: Path, shape: tuple[int, ...], outputs: int) -> None:
    source, target = make(shape=shape, outputs=outputs, seed=1), make(seed=2)
    torch.save(renamed(state(source)), tmp_path / "w.pt")
    report = load_weights(target, tmp_path / "w.pt")
    assert report.adapted[0] == "its tensors have other names: matched by order"
    assert report.head_loaded == (outputs == 5)
    same = state(make(seed=3))
    direct = make(seed=2)
    load_weights(direct, save(tmp_path / "w.safetensors", state(source)))
    assert all(torch.equal(tensor, direct.state_dict()[name]) for name, tensor in target.state_dict().items())
    assert not torch.equal(same["stages.conv1.0.weight"], state(target)["stages.conv1.0.weight"])


def test_another_order_or_kind_is_refused(tmp_path: Path) -> None:
    tensors = renamed(state(make()))
    torch.save(dict(reversed(tensors.items())), tmp_path / "w.pt")
    assert_refused(make(), tmp_path / "w.pt", "0 of 6 tensors match by name and shape")
    first = next(iter(tensors))
    other = {("t0.running_mean" if name == first else name): tensor for name, tensor in tensors.items()}
    torch.save(other, tmp_path / "w.pt")
    assert_refused(make(), tmp_path / "w.pt", "0 of 6 tensors match by name and shape")


@needs_zoo
def test_a_transformer_brings_its_patches_to_another_size(tmp_path: Path) -> None:
    """A patch of one colour has the same embedding in both sizes (FlexiViT)."""
    source = make("vit-tiny", (3, 56, 56), seed=1)
    target = make("vit-tiny", (1, 112, 112), seed=2)
    report = load_weights(target, save(tmp_path / "w.safetensors", state(source)))
    name = "body.patch_embed.proj.weight"
    assert report.adapted[0] == f"{name} was resampled to patches of 16x16 pixels"
    assert "summed over the three colours" in report.adapted[1]
    before, after = state(source)[name], state(target)[name]
    assert (before.shape[2:], after.shape[1:]) == ((8, 8), (1, 16, 16))
    torch.testing.assert_close(after.sum((1, 2, 3)), before.sum((1, 2, 3)), atol=1e-4, rtol=1e-4)
