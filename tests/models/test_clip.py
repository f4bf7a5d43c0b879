"""CLIP towers: published files load by name, and cosines agree with open_clip's own model."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unseen.errors import UnseenError, UsageError
from unseen.methods.closed_form import class_text_head, start_zero_shot
from unseen.models import MODELS, InputSpec, Layout, build_model
from unseen.models.class_texts import check_template
from unseen.models.torchvision_compat import import_open_clip

NAMES = ("dog", "alarm_clock", "guitar")
SPEC = InputSpec((3, 32, 32), 3, NAMES)


@pytest.fixture(scope="module")
def original() -> nn.Module:
    """open_clip's own model of the size of `clip-tiny`, with weights of its own."""
    import_open_clip("a test")
    from open_clip.model import CLIP

    with torch.random.fork_rng():
        torch.manual_seed(5)
        return CLIP(
            32,
            {"layers": 2, "width": 32, "head_width": 16, "patch_size": 4, "image_size": 32},
            {"width": 32, "heads": 2, "layers": 2},
        ).eval()


@pytest.fixture(scope="module")
def file(original: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as open_clip publishes it."""
    path = tmp_path_factory.mktemp("clip") / "open_clip_model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in original.state_dict().items()}, path)
    return path


def images(size: int = 32, channels: int = 3) -> Tensor:
    return torch.rand(4, channels, size, size, generator=torch.Generator().manual_seed(1))


def literal_cosines(original: nn.Module, sentences: list[str]) -> Tensor:
    """e^logit_scale times the cosines, from open_clip's own forward pass on whole texts of 77 tokens."""
    from open_clip.tokenizer import tokenize

    with torch.no_grad():
        ours, theirs, scale = original(images(), tokenize(sentences))
        return scale * ours @ theirs.T


def test_the_zero_shot_head_has_the_logits_of_the_original(original: nn.Module, file: Path) -> None:
    network = build_model("clip-tiny", SPEC, seed=0, weights=file).eval()
    start_zero_shot(network)
    expected = literal_cosines(
        original, ["a photo of a dog.", "a photo of a alarm clock.", "a photo of a guitar."]
    )
    with torch.no_grad():
        torch.testing.assert_close(network(images()), expected, rtol=1e-4, atol=1e-4)
        features = network.features(images())
        torch.testing.assert_close(features.square().mean(1), torch.ones(4))
    assert not network.head.bias.any() and type(network.head) is nn.Linear


def test_templates_are_averaged_on_the_sphere(original: nn.Module, file: Path) -> None:
    network = build_model("clip-tiny", SPEC, seed=0, weights=file)
    assert network.texts is not None
    one, two = (network.texts.embed_classes(template) for template in ("a {}", "{} at night"))
    both = network.texts.embed_classes("a {}; {} at night")
    torch.testing.assert_close(both, nn.functional.normalize(one + two, dim=1))
    assert not torch.allclose(both, one, atol=1e-3)
    head = class_text_head(network, "a {}")
    expected = literal_cosines(original, ["a dog", "a alarm clock", "a guitar"])
    with torch.no_grad():
        torch.testing.assert_close(head(network.eval().features(images())), expected, rtol=1e-4, atol=1e-4)


def test_the_text_tower_is_in_no_state_and_shared_by_copies(file: Path) -> None:
    network = build_model("clip-tiny", SPEC, seed=0, weights=file)
    assert all(entry.name.startswith(("body.", "head.")) for entry in Layout.of(network).entries)
    assert copy.deepcopy(network).texts is network.texts
    sent = pickle.loads(pickle.dumps(network))
    torch.testing.assert_close(sent.texts.embed_classes("a {}"), network.texts.embed_classes("a {}"))
    assert build_model("clip-tiny", InputSpec((3, 32, 32), 3), seed=0).texts is None


def test_a_process_without_open_clip_can_unpickle_the_texts(tmp_path: Path) -> None:
    network = build_model("clip-tiny", SPEC, seed=0)
    (tmp_path / "texts").write_bytes(pickle.dumps(network.texts))
    program = "import pickle, sys; texts = pickle.load(open(sys.argv[1], 'rb')); print(*texts.names)"
    command = [sys.executable, "-c", program, str(tmp_path / "texts")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == [*NAMES]


def test_positions_are_interpolated_as_open_clip_does(original: nn.Module, file: Path) -> None:
    from open_clip.model import CLIP, resize_pos_embed

    network = build_model("clip-tiny", InputSpec((3, 28, 28), 3, NAMES), seed=0, weights=file)
    vision = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 4, "image_size": 28}
    smaller = CLIP(32, vision, {"width": 32, "heads": 2, "layers": 2})
    state = dict(original.state_dict())
    resize_pos_embed(state, smaller)
    torch.testing.assert_close(network.body.positional_embedding.data, state["visual.positional_embedding"])


def test_grey_images_are_colour_images_in_three_equal_channels(file: Path) -> None:
    grey = build_model("clip-tiny", InputSpec((1, 32, 32), 3, NAMES), seed=0, weights=file).eval()
    colour = build_model("clip-tiny", SPEC, seed=0, weights=file).eval()
    values = images(channels=1)
    with torch.no_grad():
        torch.testing.assert_close(
            grey.features(values), colour.features(values.expand(-1, 3, -1, -1)), rtol=1e-4, atol=1e-4
        )


def test_a_file_without_a_text_tower_gives_the_image_tower_alone(file: Path, tmp_path: Path) -> None:
    trained = build_model("clip-tiny", SPEC, seed=3)
    save_file(dict(trained.state_dict()), tmp_path / "model.safetensors")
    network = build_model("clip-tiny", SPEC, seed=0, weights=tmp_path / "model.safetensors")
    torch.testing.assert_close(network.body.proj, trained.body.proj)
    with pytest.raises(UsageError, match="reads class names with a text tower") as error:
        start_zero_shot(network)
    assert "\n" not in str(error.value)


def test_files_that_do_not_fit_and_images_that_cannot_be_cut_are_refused(
    original: nn.Module, file: Path, tmp_path: Path
) -> None:
    state = {name: tensor.contiguous() for name, tensor in original.state_dict().items()}
    save_file({**state, "ln_final.weight": torch.ones(8)}, tmp_path / "wrong.safetensors")
    with pytest.raises(UnseenError, match=r"text tower does not fit.*'ln_final.weight'"):
        build_model("clip-tiny", SPEC, seed=0, weights=tmp_path / "wrong.safetensors")
    save_file({**state, "visual.proj": torch.ones(8, 8)}, tmp_path / "wrong.safetensors")
    with pytest.raises(UnseenError, match="'proj' is 8x8 in the file"):
        build_model("clip-tiny", SPEC, seed=0, weights=tmp_path / "wrong.safetensors")
    with pytest.raises(UsageError, match="use a multiple of 32 as --image-size"):
        build_model("clip-vit-b-32", InputSpec((3, 100, 100), 3, NAMES), seed=0)


def test_texts_that_the_tower_cannot_read_are_refused() -> None:
    texts = build_model("clip-tiny", SPEC, seed=0).texts
    assert texts is not None
    assert texts.tokenize([" ".join(["dog"] * 75)]).shape == (1, 77)
    with pytest.raises(UsageError, match="more than 77 tokens"):
        texts.tokenize([" ".join(["dog"] * 76)])
    for wrong in ("a photo", "{} and {}", "a {};a photo"):
        with pytest.raises(UsageError, match="once for the name of the class"):
            check_template(wrong, owner="a test")


def test_the_list_counts_the_image_tower_and_the_head() -> None:
    from open_clip.model import CLIP

    open_clip = import_open_clip("a test")
    listed = {"clip-vit-b-32": "ViT-B-32", "clip-vit-b-16-quickgelu": "ViT-B-16-quickgelu"}
    listed["clip-vit-l-14"] = "ViT-L-14"
    for name, config in listed.items():
        with torch.device("meta"):
            clip = CLIP(**open_clip.get_model_config(config))
        counted = sum(parameter.numel() for parameter in clip.visual.parameters())
        assert MODELS[name].parameters == counted + 10 * (clip.visual.output_dim + 1), name
    tiny = build_model("clip-tiny", InputSpec(MODELS["clip-tiny"].reference, 10), seed=0)
    assert sum(parameter.numel() for parameter in tiny.parameters()) == MODELS["clip-tiny"].parameters
