"""StableFDG: styles that clients share, shift and explore inside the network, and a feature highlighter.

The clients' styles go through the server, which keeps the latest of each. See docs/methods/stablefdg.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from unseen.aggregation import ServerWork, client_weights
from unseen.data import Batch
from unseen.errors import UsageError
from unseen.methods._shared import RunningMeans, add_to_bank, read_bank
from unseen.methods.base import Method, Paper, register
from unseen.methods.stablefdg.highlighter import HighlightedNetwork, next_of_class, with_highlighter
from unseen.methods.stablefdg.stablefdg_settings import StableFDGSettings
from unseen.methods.stablefdg.style_stages import (
    STYLES,
    StyleStages,
    could_be_styles,
    find_foreign_styles,
)
from unseen.models import Network
from unseen.training import ClientWork, LocalTrainingConfig, Update


@register
class StableFDG(Method[StableFDGSettings]):
    """Cross-entropy on maps whose styles are shared, shifted and explored, with attention within classes.

    Behind its first stage a batch gets styles of another client; behind each of the first three, styles are
    mixed, after images of rare classes were added in styles beyond the batch's own. The head sees the pooled
    features and the last map pooled by attention.
    """

    name = "stablefdg"
    title = "StableFDG"
    summary = "styles of inner maps shared between clients and explored, and attention within classes"
    paper = Paper(
        title="StableFDG: Style and Attention Based Learning for Federated Domain Generalization",
        authors="Park, Han, Kim, Wang, Brinton, Moon",
        year=2023,
        venue="NeurIPS",
        url="https://arxiv.org/abs/2311.00227",
    )
    needs_individual_updates = True
    sends: tuple[str, ...] = ("model weights", "number of samples", STYLES)
    beyond_losses = "it mixes the styles of a batch, pairs its samples, and sends styles of its images"
    default_weighting = "uniform"
    fixed_weights = ""

    def __init__(self, settings: StableFDGSettings) -> None:
        super().__init__(settings)
        if not settings.sharing:
            self.sends, self.needs_individual_updates = Method.sends, False

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Return the network with a highlighter and a new head, or the network itself without one."""
        if not self.settings.highlighter:
            return network
        return with_highlighter(network, size=self.settings.attention_size, seed=seed)

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send all clients' styles; there are none before the first round."""
        return read_bank(state, STYLES)

    def client(self, work: ClientWork) -> Update:
        """Measure the styles of the client's images, train, and send the styles for the next round."""
        settings = self.settings
        if not (settings.moves_styles or settings.highlighter):
            return super().client(work)
        if not work.train.task_type.has_classes:
            raise UsageError("stablefdg pairs images of a class, but this is regression: use --method feddg")
        means, extras = RunningMeans(), {}
        styles = StyleStages(work, settings, means) if settings.moves_styles else None
        if styles is not None and settings.sharing:
            extras[STYLES] = styles.measure(work)
            styles.foreign = find_foreign_styles(work, own=extras[STYLES])
        with styles.attached() if styles is not None else nullcontext():
            work.fit(_StyledLoss(work, styles, means))
        return work.update(extras=extras, diagnostics=means.result())

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse styles that no maps have."""
        return "" if could_be_styles(update.extras.get(STYLES)) else "sent styles that no maps have"

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models, and renew the bank of styles."""
        if STYLES in self.sends:
            add_to_bank(work.state, STYLES, work.updates.clients, work.updates.extras)
            work.diagnostics["clients_with_styles"] = len(read_bank(work.state, STYLES))
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))


class _StyledLoss:
    """Loss of a client on a batch and the images that its styles add."""

    def __init__(self, work: ClientWork, styles: StyleStages | None, means: RunningMeans) -> None:
        self.work, self.styles, self.means = work, styles, means

    def __call__(self, batch: Batch) -> Tensor:
        module, size = self.work.module, len(batch.targets)
        if self.styles is not None:
            self.styles.begin(batch.targets)
        if isinstance(module, HighlightedNetwork):
            features, weights = module.features_in_pairs(
                batch.inputs, lambda: next_of_class(self._targets(batch))
            )
            self.means.add("attention_peak", weights.amax(1).mean() * weights.shape[1], samples=size)
            outputs = module.head(features)
        else:
            outputs = module(batch.inputs)
        self.means.add("rows_per_image", torch.tensor(len(outputs) / size), samples=size)
        return self.work.task_loss(outputs, self._targets(batch))

    def _targets(self, batch: Batch) -> Tensor:
        """Return the classes of all rows of the network's output."""
        return batch.targets if self.styles is None else batch.targets[self.styles.rows]
