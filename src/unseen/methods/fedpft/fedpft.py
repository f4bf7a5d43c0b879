"""FedPFT: clients send Gaussian mixtures of their features once, the server trains the head on draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.aggregation import ServerWork
from unseen.errors import UsageError
from unseen.hparams import Settings, setting
from unseen.methods.base import Method, Paper, register
from unseen.methods.closed_form.closed_form_method import send_statistics
from unseen.methods.closed_form.feature_sums import Watch, feature_batches
from unseen.methods.closed_form.linear_head import count_features, count_outputs
from unseen.methods.fedpft.drawn_features import draw_features, regress_head, train_head
from unseen.methods.fedpft.gaussian_mixtures import (
    COVARIANCE,
    Covariance,
    Mixture,
    count_numbers,
    fit_mixture,
)
from unseen.methods.fedpft.private_gaussians import (
    SENSITIVITY,
    add_noise,
    find_noise_multiplier,
    read_gaussian,
    sum_clipped,
)
from unseen.models import Network
from unseen.privacy.dp.accountant import default_delta
from unseen.privacy.dp.noise import NoiseSeed, NoiseStream, noise_key
from unseen.seeding import derive_seed
from unseen.training import ClientWork, LocalTrainingConfig, Update

MIXTURES, COUNTS = "mixtures of features", "class counts"


@dataclass(frozen=True)
class FedPFTSettings(Settings):
    """Settings of FedPFT."""

    components: int = setting(10, "largest number of Gaussians per class and client")
    samples_per_component: int = setting(
        5, "samples per Gaussian: a class with fewer than twice as many gets a single one"
    )
    covariance: Covariance = setting("diagonal", COVARIANCE)
    draws: float = setting(1.0, "features drawn by the server for every sample that a client has")
    solver: Literal["adamw", "ridge"] = setting(
        "adamw", "the head on drawn features: cross-entropy by AdamW, or `ridge` regression in closed form"
    )
    lr: float = setting(1e-3, "adamw: learning rate, on features of mean variance 1")
    epochs: int = setting(50, "adamw: passes over the drawn features")
    batch_size: int = setting(32, "adamw: batch size")
    epsilon: float | None = setting(
        None,
        "differential privacy of samples towards the server: epsilon; needs components=1; none = no noise",
    )
    delta: float | None = setting(
        None, "delta of the guarantee; none = 1e-5, or 1 / samples^1.1 of the client if smaller"
    )
    clip_norm: float | None = setting(
        None, "with epsilon: longer features are clipped to this norm; none = root of the number of features"
    )
    noise_seed: NoiseSeed = setting(
        "secret", "with epsilon: noise from a `secret` key, or from the `run`'s seed, which is no guarantee"
    )

    def __post_init__(self) -> None:
        for name in ("components", "samples_per_component", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"setting {name!r} of fedpft must be at least 1, not {getattr(self, name)}")
        for name in ("draws", "lr", "epsilon", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"setting {name!r} of fedpft must be above 0, not {value}")
        if self.delta is not None and not 0 < self.delta < 1:
            raise UsageError(f"setting 'delta' of fedpft must be between 0 and 1, not {self.delta}")
        if self.epsilon is not None and self.components != 1:
            raise UsageError(
                "fedpft with epsilon sends one Gaussian per class, whose sums have a known sensitivity: "
                "add --set components=1"
            )


@register
class FedPFT(Method[FedPFTSettings]):
    """Fits a Gaussian mixture to each class's features at each client; the head is trained on draws of them.

    Client k sends G_kc = sum_j pi_j N(mu_j, diag(s_j)) and its count n_kc for each class c; the server draws
    n_kc features from G_kc and trains the head on all of them. The body stays as it is, so one round is the
    result. A component that one sample makes is that sample's features; with `epsilon`, Gaussians carry
    noise that makes them differentially private (`private_gaussians`).
    """

    name = "fedpft"
    title = "FedPFT"
    summary = "clients send Gaussian mixtures of features by class once; the head is trained on draws of them"
    paper = Paper(
        title="Parametric Feature Transfer: One-shot Federated Learning with Foundation Models",
        authors="Beitollahi, Bie, Hemati, Brunswic, Li, Chen, Zhang",
        year=2024,
        venue="arXiv",
        url="https://arxiv.org/abs/2402.01862",
    )
    sends = ("model weights", "number of samples", MIXTURES, COUNTS)
    no_average = "it trains the head on features drawn from the clients' mixtures"
    fixed_weights = f"{no_average}, as many of each as the client has samples"
    own_optimizers = "clients train nothing"
    default_train = "head"
    default_rounds = 1
    beyond_losses = "it sends Gaussian mixtures of the features of its samples"

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what epsilon covers."""
        if self.settings.epsilon is None:
            return ()
        seeded = " The noise comes from the run's seed: no guarantee towards anyone who knows it."
        return (
            f"fedpft: epsilon {self.settings.epsilon:g} covers the Gaussians and class counts of a client's "
            "training samples, if one sample is replaced; not their number, and not the scores on validation "
            f"and test samples.{seeded if self.settings.noise_seed == 'run' else ''}",
        )

    def describe_extras(self, module: nn.Module) -> dict[str, Tensor]:
        """Describe the rows of all components of all classes, and the counts."""
        head = self.deployed(module).head
        numbers = count_numbers(head.in_features, self.settings.covariance)
        return {
            MIXTURES: torch.empty(head.out_features, self.settings.components, numbers, device="meta"),
            COUNTS: torch.empty(head.out_features, dtype=torch.int64, device="meta"),
        }

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Refuse counts that no samples have, and rows that are no mixture."""
        if set(update.extras) != {MIXTURES, COUNTS}:
            return f"did not send both {MIXTURES} and {COUNTS}"
        rows, counts = update.extras[MIXTURES], update.extras[COUNTS]
        exact = self.settings.epsilon is not None or int(counts.sum()) == update.samples
        if bool((counts < 0).any()) or bool((counts > update.samples).any()) or not exact:
            return "sent class counts that its samples do not have"
        numbers = rows.shape[2] - 1
        variances = numbers // 2 if self.settings.covariance == "diagonal" else 1
        mixtures = Mixture.unpack(rows[counts > 0].flatten(0, 1), features=numbers - variances)
        positive = bool((mixtures.weights >= 0).all()) and bool((mixtures.variances >= 0).all())
        totals = mixtures.weights.reshape(-1, rows.shape[1]).sum(1)
        return "" if positive and bool((totals - 1).abs().le(1e-3).all()) else "sent rows that are no mixture"

    def client(self, work: ClientWork) -> Update:
        """Fit and send the mixtures; with epsilon, the loss of the received model is not sent."""
        if not work.train.task_type.has_classes:
            raise UsageError(
                "fedpft needs classes, but this task is regression; use --method ridge, which regresses"
            )
        update = send_statistics(self._fit, self.deployed(work.module), work)
        if self.settings.epsilon is None:
            return update
        noise = SENSITIVITY * self._find_multiplier(update.samples)
        return replace(update, loss=0.0, diagnostics={"noise_std": noise})

    def _fit(self, network: Network, work: ClientWork, watch: Watch) -> dict[str, Tensor]:
        batches = feature_batches(network, work.train, prepare=work.prepare, balance="samples", watch=watch)
        features = torch.cat([batch.features for batch in batches])
        labels, classes = work.train.targets.long(), len(work.train.classes)
        counts = labels.bincount(minlength=classes)
        width = count_numbers(features.shape[1], self.settings.covariance)
        rows = torch.zeros(classes, self.settings.components, width)
        if self.settings.epsilon is None:
            for label in counts.nonzero().flatten().tolist():
                rows[label] = self._fit_class(features[labels == label], label, work)
        else:
            self._fit_private(features, labels, rows, counts, work)
        return {MIXTURES: rows, COUNTS: counts}

    def _fit_class(self, features: Tensor, label: int, work: ClientWork) -> Tensor:
        """Fit the mixture of one class, with as many components as its samples allow."""
        allowed = max(len(features) // self.settings.samples_per_component, 1)
        mixture = fit_mixture(
            features,
            components=min(self.settings.components, allowed),
            covariance=self.settings.covariance,
            seed=derive_seed(work.own_seed, "fedpft: mixture", work.client, label),
        )
        return mixture.pack(self.settings.components)

    def _fit_private(
        self, features: Tensor, labels: Tensor, rows: Tensor, counts: Tensor, work: ClientWork
    ) -> None:
        """Write noised Gaussians and counts of all classes; a repeated round repeats the noise."""
        settings, samples = self.settings, len(features)
        clip_norm = settings.clip_norm or math.sqrt(features.shape[1])
        multiplier = self._find_multiplier(samples)
        key = noise_key(settings.noise_seed, seed=work.seed, state=work.state)
        stream = NoiseStream(key, "fedpft: Gaussians", work.client)
        sums = sum_clipped(features, labels, classes=len(rows), clip_norm=clip_norm)
        noised = add_noise(sums, multiplier=multiplier, stream=stream)
        for label in range(len(rows)):
            count, gaussian = read_gaussian(
                noised[label], samples=samples, clip_norm=clip_norm, covariance=settings.covariance
            )
            counts[label] = count
            rows[label] = gaussian.pack(1) if count else 0

    def _find_multiplier(self, samples: int) -> float:
        """Find the noise for a client with so many samples, per unit of sensitivity."""
        assert self.settings.epsilon is not None
        return find_noise_multiplier(self.settings.epsilon, self.settings.delta or default_delta(samples))

    def server(self, work: ServerWork) -> Tensor:
        """Draw features from all mixtures and train the head on them."""
        layout, settings = work.updates.layout, self.settings
        outputs, size = count_outputs(layout), count_features(layout)
        named = sorted(zip(work.updates.clients, work.updates.extras, strict=True), key=lambda pair: pair[0])
        sent = [(client, extras[MIXTURES], extras[COUNTS]) for client, extras in named]
        drawn = draw_features(sent, features=size, draws=settings.draws, seed=work.seed)
        work.diagnostics["features_drawn"] = len(drawn.labels)
        if not len(drawn.labels):
            return work.weights.clone()
        if settings.solver == "ridge":
            head, work.diagnostics["strength"] = regress_head(drawn, outputs=outputs)
        else:
            head, work.diagnostics["loss_on_drawn_features"] = train_head(
                drawn,
                outputs=outputs,
                lr=settings.lr,
                epochs=settings.epochs,
                batch_size=settings.batch_size,
                generator=work.generator("fedpft: order"),
            )
        return head.write(work.weights, layout)
