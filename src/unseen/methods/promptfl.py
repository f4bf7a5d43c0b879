"""PromptFL: a frozen CLIP, and learnt tokens in front of the class names, which is all that clients send."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods._shared import freeze_all_but, with_head
from unseen.methods.base import Method, Paper, register
from unseen.models import Network
from unseen.models.class_texts import ClassTexts, fill, last_tokens
from unseen.seeding import torch_generator

CONTEXT = "context"
_INITIAL_STD = 0.02
_FILLER = "x"
"""A word of one token, whose place a learnt token takes."""


@dataclass(frozen=True)
class PromptFLSettings(Settings):
    """Settings of PromptFL."""

    tokens: int = setting(16, "number of learnt tokens in front of every class name")
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UsageError(f"setting 'tokens' of promptfl must be at least 1, not {self.tokens}")


class PromptHead(nn.Linear):
    """A head whose weights the text tower computes: for class c from [V_1] ... [V_m] [name of c] [.].

    The learnt vectors V are common to all classes. Without a text tower, as in a saved model, it is a plain
    layer with the weights that were computed last.
    """

    def __init__(self, network: Network, *, tokens: int, generator: torch.Generator) -> None:
        head = network.head
        super().__init__(head.in_features, head.out_features, device=head.weight.device)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.texts: ClassTexts | None = network.texts
        drawn = torch.randn(tokens, network.text_width, generator=generator) * _INITIAL_STD
        self.context = nn.Parameter(drawn.to(head.weight.device))
        self._known: tuple[Tensor, Tensor] | None = None
        if self.texts is not None:
            self._read_names(self.texts, tokens)

    def _read_names(self, texts: ClassTexts, tokens: int) -> None:
        """Keep the vectors of the tokens around the learnt ones, and where every prompt ends."""
        filler = " ".join([_FILLER] * tokens)
        found = texts.tokenize(fill(f"{filler} {{}}.", texts.names))
        vectors = texts.token_vectors(found).to(self.weight.device)
        self.register_buffer("start", vectors[:, :1], persistent=False)
        self.register_buffer("names", vectors[:, 1 + tokens :], persistent=False)
        self.register_buffer("last", last_tokens(found).to(self.weight.device), persistent=False)

    def class_weights(self, context: Tensor) -> Tensor:
        """Compute the weights s t_c / sqrt(d) from learnt vectors (tokens x width)."""
        assert self.texts is not None
        start, names, last = (self.get_buffer(name) for name in ("start", "names", "last"))
        common = context.expand(len(names), *context.shape)
        vectors = self.texts.encode(torch.cat([start, common, names], dim=1), last)
        return vectors * (self.texts.scale / math.sqrt(vectors.shape[1]))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits s cos(f, t_c)."""
        return F.linear(inputs, self._current_weights(), self.bias)

    def _current_weights(self) -> Tensor:
        """Compute the weights; in evaluation once for every context, not for every batch."""
        if self.texts is None:
            return self.weight
        if self.training or torch.is_grad_enabled():
            return self.class_weights(self.context)
        if self._known is None or not torch.equal(self._known[0], self.context):
            self._known = self.context.clone(), self.class_weights(self.context)
        return self._known[1]

    def fold(self, state: dict[str, Tensor], name: str) -> None:
        """Write the weights that belong to a state's context into the state; see `plain_state`."""
        if self.texts is not None:
            with torch.no_grad():
                state[f"{name}.weight"] = self.class_weights(state[f"{name}.{CONTEXT}"])


@register
class PromptFL(Method[PromptFLSettings]):
    """Minimizes the cross-entropy of s cos(f, t_c(V)) over the learnt tokens V; both towers are frozen.

    The prompt is that of CoOp (Zhou et al. 2022) with the class name at its end, and the server averages the
    clients' tokens.
    """

    name = "promptfl"
    title = "PromptFL"
    family = "prompt or adapter"
    summary = "learnt tokens in front of the class names of a frozen CLIP; only these tokens are sent"
    paper = Paper(
        title="PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models",
        authors="Guo, Guo, Wang, Tang, Xu",
        year=2023,
        venue="IEEE TMC",
        url="https://arxiv.org/abs/2208.11625",
    )
    fixed_weights = ""
    default_train = "head"
    needs_texts = True
    own_head = "its head are the sentences that it learns"
    effort_options = {"optimiser": "sgd", "lr": 2e-3, "weight_decay": 5e-4}  # noqa: RUF012 (as in Method)

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Replace the head by one that reads the learnt tokens; freeze everything else."""
        generator = torch_generator(seed, "promptfl: tokens", self.settings.tokens)
        head = PromptHead(network, tokens=self.settings.tokens, generator=generator)
        return freeze_all_but(with_head(network, head), [f"head.{CONTEXT}"])

    def server(self, work: ServerWork) -> Tensor:
        """Average the learnt tokens."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))
