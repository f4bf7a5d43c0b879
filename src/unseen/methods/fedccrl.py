"""FedCCRL: images get channel statistics of other clients' images and AugMix; views are aligned with them.

The statistics go through the server, which keeps a pool of them. See docs/methods/fedccrl.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from unseen.aggregation import ServerWork, client_weights
from unseen.data import Batch
from unseen.data.augment import laid_out_like
from unseen.data.augmentation.feature_styles import blend_styles, style_of
from unseen.data.augmentation.policies import augmix
from unseen.data.augmentation.sample_mixing import draw_beta
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting
from unseen.methods._shared import (
    RunningMeans,
    add_to_bank,
    bank_key,
    bank_of_others,
    read_bank,
    require_images,
)
from unseen.methods.base import Method, Paper, register
from unseen.models import Network
from unseen.training import ClientWork, LocalTrainingConfig, Update

STATISTICS = "channel means and stds of single images"
_BATCH = 256
_SMALLEST = 1e-7
"""Smallest mean probability, so that its logarithm is finite."""


@dataclass(frozen=True)
class FedCCRLSettings(Settings):
    """Settings of FedCCRL."""

    upload: float = setting(
        0.1,
        "fraction of its images whose channel statistics a client sends; 0 = none leave, views are AugMix",
    )
    every_round: bool = setting(
        True, "send statistics of newly drawn images in every round, as released; false: those of the first"
    )
    views: int = setting(2, "number of views of every image; 0 is FedAvg")
    alpha: float = setting(
        0.1,
        "both parameters of the Beta distribution of an image's share of its own style",
        search=Uniform(0.1, 1),
    )
    representation: float = setting(
        0.1,
        "weight lambda_1 of the supervised contrast of features; 0 = without it",
        search=LogUniform(0.01, 1.0),
    )
    prediction: float = setting(
        0.1,
        "weight lambda_2 of the Jensen-Shannon divergence of predictions; 0 = without it",
        search=LogUniform(0.01, 10.0),
    )
    temperature: float = setting(
        0.1, "temperature tau of the contrast's similarities", search=LogUniform(0.05, 1.0)
    )
    own_positive: bool = setting(
        False, "count a feature as a positive of itself in the contrast, as the released code does"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.upload <= 1:
            raise UsageError(f"setting 'upload' of fedccrl must be in [0, 1], not {self.upload}")
        for name in ("alpha", "temperature"):
            if not getattr(self, name) > 0:
                raise UsageError(f"setting {name!r} of fedccrl must be above 0, not {getattr(self, name)}")
        for name in ("views", "representation", "prediction"):
            if not getattr(self, name) >= 0:
                raise UsageError(
                    f"setting {name!r} of fedccrl must not be negative, not {getattr(self, name)}"
                )


@register
class FedCCRL(Method[FedCCRLSettings]):
    """Cross-client representation learning: CE on an image and its views, plus terms that align them.

    A view is the image with its channel means and stds moved to those of another client's image (MixStyle),
    then AugMix. Clients minimize sum of CE + lambda_1 * contrast of features + lambda_2 * JS of predictions.
    Before there is a pool (in the first round, or with a single client) views are AugMix alone.
    """

    name = "fedccrl"
    title = "FedCCRL"
    summary = "views of images in other clients' channel statistics and AugMix, aligned with the originals"
    paper = Paper(
        title="FedCCRL: Federated Domain Generalization with Cross-Client Representation Learning",
        authors="Wang, Tang",
        year=2024,
        venue="arXiv",
        url="https://arxiv.org/abs/2410.11267",
    )
    needs_individual_updates = True
    sends: tuple[str, ...] = ("model weights", "number of samples", STATISTICS)
    of_single_samples = (STATISTICS,)
    beyond_losses = "it sends channel statistics of its images, and contrasts the samples of a batch"
    fixed_weights = ""

    def __init__(self, settings: FedCCRLSettings) -> None:
        super().__init__(settings)
        if not settings.upload or not settings.views:
            self.sends = Method.sends

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Send the pool; there is none before the first round."""
        return read_bank(state, STATISTICS)

    def client(self, work: ClientWork) -> Update:
        """Train on images and their views, and send statistics for the next round."""
        if not self.settings.views:
            return super().client(work)
        if not work.train.task_type.has_classes:
            raise UsageError("fedccrl contrasts classes, but this is regression: use --method feddg")
        require_images(work, what="fedccrl changes the colours of images")
        extras = {}
        known = bank_key(STATISTICS, work.client) in work.received
        if STATISTICS in self.sends and (self.settings.every_round or not known):
            extras[STATISTICS] = image_statistics(work, fraction=self.settings.upload)
        loss = _AlignedLoss(work, self.settings)
        work.fit(loss)
        return work.update(extras=extras, diagnostics=loss.means.result())

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse statistics that no images of the client have."""
        usable = could_be_statistics(update.extras.get(STATISTICS), images=update.samples)
        return "" if usable else "sent channel statistics that no images have"

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models, and renew the pool."""
        add_to_bank(work.state, STATISTICS, work.updates.clients, work.updates.extras)
        pool = read_bank(work.state, STATISTICS)
        work.diagnostics["images_in_the_pool"] = sum(map(len, pool.values()))
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))


def image_statistics(work: ClientWork, *, fraction: float) -> Tensor:
    """Compute mean and std of every channel of drawn normalized images: (images, 2, channels).

    Images are without augmentation; at least one is drawn.
    """
    count = max(int(fraction * len(work.train)), 1)
    drawn = torch.randperm(len(work.train), generator=work.generator("uploaded statistics"))[:count]
    parts = []
    for positions in drawn.sort().values.split(_BATCH):
        inputs = work.prepare(work.train.gather(positions)).inputs
        parts.append(torch.cat(style_of(inputs.flatten(2)), dim=2).movedim(2, 1).cpu())
    return torch.cat(parts)


def could_be_statistics(sent: Tensor | None, *, images: int) -> bool:
    """Check whether values are what `image_statistics` returns for some of that many images, or none."""
    if sent is None:
        return True
    if sent.dtype is not torch.float32 or sent.ndim != 3 or sent.shape[1] != 2:
        return False
    return 0 < len(sent) <= images and bool((sent[:, 1] >= 0).all())


class _AlignedLoss:
    """Loss of a client on a batch, with running means of its terms and of how much views differ."""

    def __init__(self, work: ClientWork, settings: FedCCRLSettings) -> None:
        self.work, self.settings = work, settings
        self.network = cast(Network, work.module)
        others = bank_of_others(work.received, STATISTICS, work.client) if settings.upload else []
        self.pool = torch.cat(others) if others else None
        self.generator = work.generator("views")
        self.means = RunningMeans()

    def __call__(self, batch: Batch) -> Tensor:
        features, logits, losses = [], [], []
        for inputs in [batch.inputs, *self._views(batch.inputs)]:
            features.append(self.network.features(inputs))
            logits.append(self.network.head(features[-1]))
            losses.append(self.work.task_loss(logits[-1], batch.targets))
        loss = torch.stack(losses).sum()
        self._note("loss_on_views", torch.stack(losses[1:]).mean(), batch)
        if self.settings.prediction:
            divergence = jensen_shannon(logits)
            self._note("prediction_divergence", divergence, batch)
            loss = loss + self.settings.prediction * divergence
        if self.settings.representation:
            contrast = torch.stack([self._contrast(view, features[0], batch) for view in features[1:]]).mean()
            self._note("representation_contrast", contrast, batch)
            loss = loss + self.settings.representation * contrast
        return loss

    def _contrast(self, view: Tensor, original: Tensor, batch: Batch) -> Tensor:
        return supervised_contrast(
            view,
            original,
            batch.targets,
            temperature=self.settings.temperature,
            own_positive=self.settings.own_positive,
        )

    def _note(self, name: str, value: Tensor, batch: Batch) -> None:
        self.means.add(name, value, samples=len(batch.targets))

    @torch.no_grad()
    def _views(self, inputs: Tensor) -> list[Tensor]:
        """Make the views of a batch: foreign styles on normalized images, AugMix on the scale of pixels."""
        normalize, views = self.work.prepare.normalize, []
        for _ in range(self.settings.views):
            styled = inputs if self.pool is None else self._restyle(inputs, self.pool)
            images = augmix(normalize.undo(styled).clamp(0, 1), self.generator)
            views.append(laid_out_like(inputs, normalize.finish(images)))
        change = torch.stack([(view - inputs).abs().mean() for view in views]).mean()
        self.means.add("change_of_views", change, samples=len(inputs))
        return views

    def _restyle(self, inputs: Tensor, pool: Tensor) -> Tensor:
        """Blend each image's channel statistics with those of an image from the pool."""
        chosen = draw_from_pool(len(pool), len(inputs), self.generator)
        mean, std = pool[chosen].to(inputs).unsqueeze(-1).unbind(1)
        share = draw_beta(len(inputs), self.settings.alpha, self.generator).to(inputs)[:, None, None]
        maps = inputs.flatten(2)
        return blend_styles(maps, style_of(maps), (mean, std), share).view_as(inputs)


def draw_from_pool(size: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw positions in a pool, without repetition where it is large enough."""
    if size >= count:
        return torch.randperm(size, generator=generator)[:count]
    return torch.randint(size, (count,), generator=generator)


def jensen_shannon(logits: Sequence[Tensor]) -> Tensor:
    """Compute the mean over samples and predictions p_i of KL(p_i || mean of all p_i), in nats."""
    logs = torch.stack([each.log_softmax(1) for each in logits])
    probabilities = logs.exp()
    middle = probabilities.mean(0).clamp(min=_SMALLEST).log()
    return (probabilities * (logs - middle)).sum(2).mean()


def supervised_contrast(
    view: Tensor, original: Tensor, targets: Tensor, *, temperature: float, own_positive: bool = False
) -> Tensor:
    """Contrast the features of a view and of its originals, 2n in all, by class (Khosla et al. 2020).

    The mean over all features z_i of the mean over positives z_p, features of the same class, of
    -log( e^(z_i z_p / tau) / sum_{a != i} e^(z_i z_a / tau) ), with features scaled to length 1.

    own_positive  count a feature as a positive of itself, as the released code of FedCCRL does
    """
    features = F.normalize(torch.cat([view, original]), dim=1)
    labels = torch.cat([targets, targets])
    similarity = features @ features.T / temperature
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    normalizer = similarity.masked_fill(itself, -torch.inf).logsumexp(1)
    positive = labels[:, None] == labels
    if not own_positive:
        positive = positive & ~itself
    attraction = torch.where(positive, similarity, 0.0).sum(1) / positive.sum(1)
    return (normalizer - attraction).mean()
