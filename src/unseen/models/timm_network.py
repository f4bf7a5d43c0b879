"""A timm model behind our interface: its extractor as the body, a plain linear head, inner maps as taps."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from unseen.models.network import Network
from unseen.models.torchvision_shim import import_timm

_TAPS = 3


class TimmNetwork(Network):
    """Wraps a timm model that was made without classifier (`num_classes=0`).

    Taps are the last three levels that timm itself names as features: stages of a convolutional
    network, blocks of a transformer (as maps without the class token). A model that cannot give
    them as maps has none.
    """

    def __init__(self, body: Any, *, outputs: int, channels: int) -> None:
        super().__init__()
        facts = body.pretrained_cfg
        self.body = body
        self.head = nn.Linear(getattr(body, "head_hidden_size", body.num_features), outputs)
        self.head_alias = facts.get("classifier") or "head"
        self.pixel_mean = for_channels(facts["mean"], channels)
        self.pixel_std = for_channels(facts["std"], channels)
        self.tap_names = tuple(str(level["module"]) for level in list(body.feature_info)[-_TAPS:])

    @staticmethod
    def import_libraries() -> None:
        """Import timm the way that works beside every torch."""
        import_timm("a model of the zoo")

    def extract(self, inputs: Tensor, *, taps: bool = False) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return timm's pre-classifier features and, if asked for, the tapped maps."""
        kept: list[Tensor] = []
        if not (taps and self.tap_names):
            final = self.body.forward_features(inputs)
        elif hasattr(self.body, "forward_intermediates"):
            final, kept = self.body.forward_intermediates(inputs, indices=_TAPS, output_fmt="NCHW")
        else:
            final, kept = self._extract_watching(inputs)
        features = self.body.forward_head(final, pre_logits=True)
        return cast(Tensor, features.flatten(1)), tuple(kept)

    def _extract_watching(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Catch the outputs of the tapped modules as they pass."""
        kept: list[Tensor] = []
        watches = [
            self.body.get_submodule(name).register_forward_hook(
                lambda _module, _inputs, out: kept.append(out)
            )
            for name in self.tap_names
        ]
        try:
            return self.body.forward_features(inputs), kept
        finally:
            for watch in watches:
                watch.remove()

    def try_out(self, shape: tuple[int, int, int]) -> None:
        """Run one blank image through: a size the body cannot take shows now, and whether there are maps."""
        training = self.training
        blank = torch.zeros(1, *shape)
        self.eval()
        with torch.no_grad():
            self(blank)
            if not self._taps_are_maps(blank):
                self.tap_names = ()
        self.train(training)

    def _taps_are_maps(self, blank: Tensor) -> bool:
        try:
            taps = self.full(blank).taps
        except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
            return False
        return len(taps) == len(self.tap_names) and all(tap.ndim == 4 for tap in taps)


def for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Keep one value a channel, or their mean where the image has another number of channels."""
    if len(values) == channels:
        return tuple(float(value) for value in values)
    return (round(sum(values) / len(values), 6),)
