"""Weights files: read without running code, loaded if they fit the network.

Files may use our names, those of torchvision and timm, or others in the same order. Every tensor is checked
before the first is copied, so a file of another model leaves the network as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.models.network import Network

_HEAD = ("head.weight", "head.bias")
_BOTTLENECK = "bottleneck."
_PATCHES = "body.patch_embed.proj.weight"


@dataclass(frozen=True)
class WeightsReport:
    """Result of loading a weights file.

    loaded   names of the network's tensors that were loaded from the file
    head     why the head kept its initial weights; empty if it was loaded
    adapted  what had to be changed to fit, one sentence each
    """

    path: Path
    loaded: tuple[str, ...]
    head: str = ""
    adapted: tuple[str, ...] = ()

    @property
    def head_loaded(self) -> bool:
        """Whether the classifier was loaded from the file too."""
        return not self.head

    def notes(self) -> tuple[str, ...]:
        """List what a user should know, one sentence each."""
        first = f"{len(self.loaded)} tensors loaded from {self.path.name}"
        return (first, *self.adapted, *([f"the head starts fresh: {self.head}"] if self.head else []))


def load_weights(network: Network, path: Path) -> WeightsReport:
    """Load weights from a file (.safetensors, or .pt/.pth with plain tensors) into a network.

    The head may be missing or made for another number of classes: it then keeps its initial weights, as does
    a bottleneck that the file lacks.
    A grey network accepts a file for colour images: the first convolution's weights are summed over colours,
    which is equivalent to a grey image in three equal channels. The positions of a vision transformer are
    interpolated to another image size, and its patches to another patch size. Half precision becomes float32.
    """
    given = network.own_tensors(read_tensors(path))
    found = {_our_name(name, network): _in_float32(tensor) for name, tensor in given.items()}
    state = network.state_dict()
    found, renamed = _rename_by_order(found, state)
    adapted = (*renamed, *_adapt(found, state, network))
    wanted = [name for name in state if name not in _HEAD and _must_be_given(name, state, found)]
    _require_fit(network, path, found, state, wanted)
    head = _why_head_stays(found, state)
    loaded = tuple(wanted if head else [*wanted, *_HEAD])
    with torch.no_grad():
        for name in loaded:
            state[name].copy_(found[name])
    return WeightsReport(path, loaded, head, adapted)


def _our_name(name: str, network: Network) -> str:
    if name in _HEAD or name.startswith(("body.", _BOTTLENECK)):
        return name
    for part in ("weight", "bias"):
        if name == f"{network.head_alias}.{part}":
            return f"head.{part}"
    return f"body.{name}" if hasattr(network, "body") else name


def _in_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _rename_by_order(
    found: dict[str, Tensor], state: dict[str, Tensor]
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Give a file's tensors our names if it lists the same kinds and shapes in the same order under others.

    The kind of a tensor is the last part of its name (weight, bias, running_mean, ...). Files with a name of
    ours keep their names.
    """
    body = [name for name in state if name not in _HEAD and not name.startswith(_BOTTLENECK)]
    if len(found) not in (len(body), len(body) + len(_HEAD)) or any(name in state for name in found):
        return found, ()
    pairs = list(zip([*body, *_HEAD], found.items(), strict=False))
    for ours, (theirs, tensor) in pairs:
        same_kind = ours.rpartition(".")[2] == theirs.rpartition(".")[2]
        fits = ours in _HEAD or tensor.shape == state[ours].shape or _is_colour_of(tensor, state[ours].shape)
        if not (same_kind and fits):
            return found, ()
    return {ours: tensor for ours, (_, tensor) in pairs}, ("its tensors have other names: matched by order",)


def _is_colour_of(tensor: Tensor, target: torch.Size) -> bool:
    """Check whether a tensor is the first convolution for colour images where the network takes grey ones."""
    return tensor.ndim == 4 and tensor.shape[1] == 3 and target == (len(tensor), 1, *tensor.shape[2:])


def _must_be_given(name: str, state: dict[str, Tensor], found: dict[str, Tensor]) -> bool:
    """Check whether a tensor is required; files may lack a bottleneck, and counters, which nothing reads."""
    return name in found or (state[name].is_floating_point() and not name.startswith(_BOTTLENECK))


def _adapt(found: dict[str, Tensor], state: dict[str, Tensor], network: Network) -> tuple[str, ...]:
    said = []
    for name, tensor in found.items():
        if name not in state or tensor.shape == state[name].shape:
            continue
        target = state[name].shape
        if name == _PATCHES and tensor.ndim == 4 and tensor.shape[2:] != target[2:]:
            found[name] = _resample_patches(tensor, target)
            said.append(f"{name} was resampled to patches of {target[2]}x{target[3]} pixels")
        if _is_colour_of(found[name], target):
            found[name] = found[name].sum(1, keepdim=True)
            said.append(f"{name} was made for colour images: its weights were summed over the three colours")
        elif name == "body.pos_embed" and tensor.ndim == 3 and tensor.shape[2] == target[2]:
            found[name] = _resample_positions(tensor, network)
            said.append(f"{name} was interpolated from {tensor.shape[1]} to {target[1]} positions")
    return tuple(said)


def _resample_patches(kernel: Tensor, target: torch.Size) -> Tensor:
    """Change the patch size so that resized patches have the same embedding (FlexiViT, eq. 4)."""
    from timm.layers.patch_embed import resample_patch_embed

    return cast(Tensor, resample_patch_embed(kernel, list(target[2:])))


def _resample_positions(positions: Tensor, network: Network) -> Tensor:
    from timm.layers.pos_embed import resample_abs_pos_embed

    body: Any = network.get_submodule("body")
    grid = list(body.patch_embed.grid_size)
    return cast(Tensor, resample_abs_pos_embed(positions, grid, num_prefix_tokens=body.num_prefix_tokens))


def _require_fit(
    network: Network, path: Path, found: dict[str, Tensor], state: dict[str, Tensor], wanted: list[str]
) -> None:
    wrong = [name for name in wanted if name not in found or found[name].shape != state[name].shape]
    foreign = [name for name in found if name not in state and name not in _HEAD]
    if not wrong and not foreign:
        return
    name = (wrong or foreign)[0]
    shown = name.removeprefix("body.")
    if not wrong:
        first = f"{shown!r} of the file is not in the model"
    elif name not in found:
        first = f"{shown!r} is not in the file"
    else:
        first = f"{shown!r} is {_sizes(found[name])} in the file and {_sizes(state[name])} in the model"
    raise UnseenError(
        f"{path} does not fit model {network.model_name!r}: {len(wanted) - len(wrong)} of {len(wanted)} "
        f"tensors match by name and shape, {len(foreign)} are foreign; first mismatch: {first}. Name the "
        "model the file was made for, or use --weights random"
    )


def _why_head_stays(found: dict[str, Tensor], state: dict[str, Tensor]) -> str:
    if any(name not in found for name in _HEAD):
        return "the file has none"
    if any(found[name].shape != state[name].shape for name in _HEAD):
        return f"the file's has {len(found['head.bias'])} outputs, this model {len(state['head.bias'])}"
    return ""


def _sizes(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


_TORCH_SUFFIXES = (".pt", ".pth", ".bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts put the weights into a larger checkpoint."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file, or a torch file with nothing but tensors, as {name: tensor}."""
    if not path.is_file():
        raise UnseenError(f"no such weights file: {path}")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        tensors = _read_safetensors(path)
    elif suffix in _TORCH_SUFFIXES:
        tensors = _read_torch(path)
    else:
        raise UnseenError(
            f"{path} is a weights file of unknown type; expected .safetensors, {', '.join(_TORCH_SUFFIXES)}"
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UnseenError(f"{path}: tensor {name!r} holds values that are not finite; use another file")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise UnseenError(
            f"{path} is not a readable safetensors file ({_first_line(error)}); get the file again"
        ) from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on garbage the unpickler can fail with any exception
        raise UnseenError(
            f"{path} is not a torch file of plain tensors ({_first_line(error)}); save a state_dict, "
            "best as .safetensors"
        ) from error
    for key in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(map(_is_named_tensor, content.items())):
        raise UnseenError(f"{path} holds no {{name: tensor}} table; save a model's state_dict")
    return {name.removeprefix("module."): tensor for name, tensor in content.items()}


def _is_named_tensor(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], Tensor)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
