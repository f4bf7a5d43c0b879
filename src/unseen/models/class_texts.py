"""The text half of a CLIP: class names as vectors in the space of image features.

It is constant: never trained, never sent, in no state. Copies of a network share it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unseen.errors import UnseenError, UsageError
from unseen.models.torchvision_compat import import_open_clip

PLACE = "{}"
"""What stands in a template for the name of a class."""
TEMPLATE = "sentence for a class, with {} for its name; several with ; between are averaged"
_SHOWN = 40


class ClassTexts:
    """The classes of a data set and the text tower that reads their names.

    names  of the classes, as the data gives them
    tower  open_clip's model without its image tower: its tensors have the names of published files
    """

    def __init__(self, tower: Any, names: Sequence[str]) -> None:
        self.tower: nn.Module = tower.requires_grad_(False).eval()
        self.names = tuple(names)

    def __deepcopy__(self, memo: dict[int, Any]) -> ClassTexts:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"names": self.names, "tower": pickle.dumps(self.tower)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import_open_clip("a text tower")  # a worker process may not have its classes yet
        self.names, self.tower = state["names"], pickle.loads(state["tower"])

    @property
    def scale(self) -> float:
        """Factor of cosines in logits: e^logit_scale, 100 in all published models."""
        return float(self._part("logit_scale").exp())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a published file's tensors of the text tower, all of them by name."""
        own = self.tower.state_dict()
        wrong = [name for name in own if name not in tensors or tensors[name].shape != own[name].shape]
        foreign = [name for name in tensors if name not in own]
        if wrong or foreign:
            raise UnseenError(
                f"the file's text tower does not fit: tensor {(wrong or foreign)[0]!r} is "
                f"{'missing or has another shape' if wrong else 'not in the model'}. Name the model that the "
                "file was made for"
            )
        self.tower.load_state_dict(dict(tensors))

    def embed_classes(self, template: str) -> Tensor:
        """Return a vector of length 1 per class: the mean over the templates' sentences (classes x features).

        Radford et al. (2021), section 3.1.4: every sentence's vector has length 1 before the mean.
        """
        sentences = torch.stack([self.embed(fill(part, self.names)) for part in template.split(";")])
        return F.normalize(sentences.mean(0), dim=1)

    def embed(self, sentences: Sequence[str]) -> Tensor:
        """Return a vector of length 1 per sentence (sentences x features)."""
        tokens = self.tokenize(sentences)
        with torch.no_grad():
            return self.encode(self.token_vectors(tokens), last_tokens(tokens))

    def tokenize(self, sentences: Sequence[str]) -> Tensor:
        """Split sentences into tokens, as long as the longest needs; too long ones are refused."""
        limit = len(self._part("positional_embedding"))
        tokens: Tensor = _tokenizer()(list(sentences), context_length=limit + 1)
        for sentence, row in zip(sentences, tokens, strict=True):
            if bool(row[-1]):
                raise UsageError(
                    f"{sentence[:_SHOWN]!r}... has more than {limit} tokens, which is all that the text "
                    "tower reads: use a shorter template or shorter class names"
                )
        return tokens[:, : int(last_tokens(tokens).max()) + 1]

    def token_vectors(self, tokens: Tensor) -> Tensor:
        """Look up the vectors of tokens (... x width)."""
        vectors: Tensor = self._part("token_embedding").weight[tokens]
        return vectors

    def encode(self, vectors: Tensor, last: Tensor) -> Tensor:
        """Run the tower on vectors of tokens (texts x length x width); gradients reach the vectors.

        A token sees only those before it, so whatever follows the last one has no influence, and neither has
        the length.

        last  position of every text's last token, whose output stands for the text
        """
        if self._part("positional_embedding").device != vectors.device:
            self.tower.to(vectors.device)
        length = vectors.shape[1]
        values = vectors + self._part("positional_embedding")[:length]
        values = self._part("transformer")(values, attn_mask=self._part("attn_mask")[:length, :length])
        values = self._part("ln_final")(values)[torch.arange(len(values)), last]
        return F.normalize(values @ self._part("text_projection"), dim=1)

    def _part(self, name: str) -> Any:
        return getattr(self.tower, name)


def check_template(template: str, *, owner: str) -> None:
    """Refuse a template that does not name the class exactly once."""
    for part in template.split(";"):
        if part.count(PLACE) != 1:
            raise UsageError(
                f"setting 'template' of {owner} must have {PLACE} once for the name of the class, "
                f"as in 'a photo of a {PLACE}.', not {part!r}"
            )


def fill(template: str, names: Sequence[str]) -> list[str]:
    """Write the sentence of every class; underscores in names become spaces."""
    return [template.strip().replace(PLACE, name.replace("_", " ").strip()) for name in names]


def last_tokens(tokens: Tensor) -> Tensor:
    """Return the position of every text's end, the token with the largest number."""
    return tokens.argmax(dim=1)


@cache
def _tokenizer() -> Any:
    """Make open_clip's tokenizer, whose vocabulary is in its package."""
    import_open_clip("a text tower")
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer()
