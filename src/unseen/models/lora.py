"""LoRA: low-rank corrections of a vision transformer's attention layers, trained in place of their weights.

    W x  becomes  W x + (alpha / r) B A x     with W frozen; at the start A (r x in) random, B (out x r) zero

Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022 (https://arxiv.org/abs/2106.09685).
With a frozen A it is FFA-LoRA: Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024
(https://arxiv.org/abs/2403.12313).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unseen.errors import UsageError
from unseen.models.flat_state import Entry, Layout, whole_state
from unseen.models.freezing import freeze, named_state
from unseen.models.network import Network
from unseen.seeding import torch_generator

M = TypeVar("M", bound=nn.Module)
FACTOR_A, FACTOR_B = "lora_a", "lora_b"
_ATTENTION = {"qkv": "proj", "queries_keys_values": "merge"}
"""Linear layers of an attention module: the name of the first, and that of the second."""


class LoRALinear(nn.Linear):
    """A linear layer with a low-rank correction: y = W x + b + scale * B A x.

    Its weights keep the names of the plain layer. Loading the state of a plain layer restarts the correction
    at zero.

    scale  alpha / r
    """

    def __init__(self, base: nn.Linear, *, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        bound = base.in_features**-0.5
        drawn = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        self.lora_a = nn.Parameter(drawn.to(base.weight.device))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, device=base.weight.device))
        self.scale = alpha / rank

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the correction to the output of the frozen layer."""
        low = functional.linear(inputs, self.lora_a)
        return super().forward(inputs) + self.scale * functional.linear(low, self.lora_b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return the plain layer with the weights W + scale * B A."""
        plain = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.corrected(self.weight, self.lora_a, self.lora_b))
        plain.bias = None if self.bias is None else nn.Parameter(self.bias.clone())
        return plain.train(self.training)

    def corrected(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return weight + scale * B A, computed in double precision."""
        return (weight.double() + self.scale * (b.double() @ a.double())).to(weight.dtype)

    def fold(self, state: dict[str, Tensor], name: str) -> None:
        """Replace the layer's tensors in a state by those of the plain layer; see `plain_state`."""
        a, b = (state.pop(f"{name}.{factor}") for factor in (FACTOR_A, FACTOR_B))
        state[f"{name}.weight"] = self.corrected(state[f"{name}.weight"], a, b)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}weight" in state_dict and f"{prefix}{FACTOR_B}" not in state_dict:
            state_dict[f"{prefix}{FACTOR_A}"] = self.lora_a.detach()
            state_dict[f"{prefix}{FACTOR_B}"] = torch.zeros_like(self.lora_b)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def add_lora(
    network: Network,
    *,
    rank: int,
    alpha: float,
    seed: int,
    freeze_a: bool = False,
    input_shape: tuple[int, ...] | None = None,
) -> Network:
    """Add corrections to all attention layers of the network, in place; freeze all but them and the head.

    freeze_a     keep every A as it is drawn and train only B
    input_shape  shape of one input, to check that the layers are used as layers; None = not checked
    """
    found = list(_attention_layers(network))
    if not found:
        raise UsageError(
            f"--train lora corrects attention layers, and model {network.model_name!r} has none: use a "
            "vision transformer (--model mini-vit, vit-tiny, vit-small or a timm vit_*), or another --train"
        )
    for name, layer in found:
        if rank > min(layer.in_features, layer.out_features):
            raise UsageError(
                f"--lora-rank {rank} is larger than the layer {name} of model {network.model_name!r} "
                f"({layer.out_features} x {layer.in_features}): use a smaller rank, such as 8"
            )
        generator = torch_generator(seed, "LoRA factor A", name)
        _replace(network, name, LoRALinear(layer, rank=rank, alpha=alpha, generator=generator))
    if input_shape is not None:
        _require_used(network, input_shape)
    trained = (FACTOR_B,) if freeze_a else (FACTOR_A, FACTOR_B)
    head = {id(tensor) for tensor in network.head.parameters()}
    freeze(
        network,
        [
            name
            for name, tensor in named_state(network)
            if id(tensor) not in head and name.rpartition(".")[2] not in trained
        ],
    )
    return network


def merge_lora(module: M) -> M:
    """Replace the corrected layers of a module by plain ones with the same outputs, in place."""
    corrected = [(name, part) for name, part in module.named_modules() if isinstance(part, LoRALinear)]
    for name, layer in corrected:
        _replace(module, name, layer.merged())
    return module


def plain_state(module: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Return all named tensors of a module in the state `vector`: frozen ones too, corrections merged.

    A layer that computes its weights from something smaller has a method `fold(state, name)`, which writes
    them into the state.
    """
    state = whole_state(module, vector)
    for name, layer in module.named_modules():
        if (fold := getattr(layer, "fold", None)) is not None:
            fold(state, name)
    return state


class FactorPair(NamedTuple):
    """The places of a layer's two factors in the flat state."""

    a: Entry
    b: Entry


def factor_pairs(layout: Layout) -> list[FactorPair]:
    """Find the corrected layers of which both factors are trained."""
    entries = {entry.name: entry for entry in layout.entries}
    return [
        FactorPair(entry, other)
        for name, entry in entries.items()
        if name.rpartition(".")[2] == FACTOR_A
        and (other := entries.get(f"{name.removesuffix(FACTOR_A)}{FACTOR_B}")) is not None
    ]


def _attention_layers(network: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Find the linear layers of attention modules, by their names."""
    for path, part in list(network.named_modules()):
        for first, second in _ATTENTION.items():
            if isinstance(getattr(part, first, None), nn.Linear):
                for own in (first, second):
                    layer = getattr(part, own, None)
                    if isinstance(layer, nn.Linear):
                        yield f"{path}.{own}".removeprefix("."), layer


def _replace(module: nn.Module, name: str, layer: nn.Module) -> None:
    path, _, own = name.rpartition(".")
    setattr(module.get_submodule(path), own, layer)


def _require_used(network: Network, shape: tuple[int, ...]) -> None:
    """Refuse a network that reads the weights of its attention layers instead of calling the layers."""
    layers = {name: part for name, part in network.named_modules() if isinstance(part, LoRALinear)}
    called: set[nn.Module] = set()
    hooks = [
        layer.register_forward_hook(lambda module, _inputs, _output: called.add(module))
        for layer in layers.values()
    ]
    training, device = network.training, network.head.weight.device
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, *shape, device=device))
    finally:
        network.train(training)
        for hook in hooks:
            hook.remove()
    unused = [name for name, layer in layers.items() if layer not in called]
    if unused:
        raise UsageError(
            f"--train lora cannot correct {unused[0]} of model {network.model_name!r}, whose attention reads "
            "the weights directly: use another model, such as vit-tiny"
        )
