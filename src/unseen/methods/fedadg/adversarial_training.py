"""One client's round of FedADG: E0 epochs of classification, then E1 of alternating updates (algorithm 1).

Three modules are trained, each with its own loss and optimizer: the network (F and C), the discriminator and
the generator. A backward pass fills only the gradient of the module that is updated.

The adversarial losses (equations 2 to 4) are functions of the discriminator's scores.
A score is the probability that a feature was generated: generated features are the positives,
extracted ones the negatives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from unseen.data import Batch
from unseen.methods.fedadg.fedadg_networks import SharedParts, draw_fixed_reference
from unseen.methods.fedadg.readings import DiscriminatorLoss, GeneratorGoal, RateWarmUp
from unseen.models import FlatState, Kind, blocked_maps
from unseen.training import ClientWork, LocalTrainingConfig
from unseen.training.gradient_rules import clip_gradients
from unseen.training.optimizers import make_optimizer, scale_rates
from unseen.training.preprocessing import count_batches

if TYPE_CHECKING:
    from unseen.methods.fedadg.fedadg import FedADGSettings


def discriminator_loss(extracted: Tensor, generated: Tensor, *, form: DiscriminatorLoss) -> Tensor:
    """Compute L_adv_d: E D(h|y)^2 + E(1 - D(h'|y))^2, or equation 2, -E(1 - D(h|y))^2 - E D(h'|y)^2.

    Both are minimal where extracted features score 0 and generated ones 1. Where the two cannot be
    distinguished, least squares has its minimum at D = 1/2; equation 2 is concave and has its maximum there.
    """
    if form == "least-squares":
        return extracted.square().mean() + (1 - generated).square().mean()
    return -(1 - extracted).square().mean() - generated.square().mean()


def extractor_loss(extracted: Tensor) -> Tensor:
    """Compute L_adv_f, equation 3: E(1 - D(h|y))^2, minimal where extracted features score as generated."""
    return (1 - extracted).square().mean()


def generator_loss(generated: Tensor, *, goal: GeneratorGoal) -> Tensor:
    """Compute L_adv_g: `mistaken` is E D(h'|y)^2, `recognised` is equation 4, E(1 - D(h'|y))^2."""
    return generated.square().mean() if goal == "mistaken" else (1 - generated).square().mean()


class Part:
    """Parameters under one prefix of a flat state, with their own optimizer.

    lr    factor of the learning rate
    head  places of the head in the flat state's parameters
    """

    def __init__(
        self,
        flat: FlatState,
        plan: LocalTrainingConfig,
        *,
        prefix: str = "",
        lr: float = 1.0,
        head: Sequence[slice] = (),
    ) -> None:
        entries = [
            entry
            for entry in flat.layout.entries
            if entry.kind is Kind.PARAMETER and entry.name.startswith(prefix)
        ]
        place = slice(entries[0].start, entries[-1].stop)
        self.gradient = flat.gradient[place]
        self.trained = [
            parameter
            for name, parameter in flat.module.named_parameters()
            if name.startswith(prefix) and parameter.requires_grad
        ]
        self._clip_norm = plan.clip_norm
        self.optimizer = make_optimizer(
            replace(plan, lr=plan.lr * lr),
            flat.parameters[place],
            self.gradient,
            head=[slice(each.start - place.start, each.stop - place.start) for each in head],
        )

    def minimise(self, loss: Tensor) -> None:
        """Take one step on `loss`; other parameters it depends on are not updated."""
        self.optimizer.clear()
        loss.backward(inputs=self.trained)
        if self._clip_norm is not None:
            clip_gradients([self.gradient], self._clip_norm)
        self.optimizer.step()


class LocalTraining:
    """Local training of a client: three modules and the steps of algorithm 1.

    discriminator  the client's own, bound to a flat state; None where nothing is aligned
    """

    def __init__(
        self,
        work: ClientWork,
        settings: FedADGSettings,
        *,
        shared: SharedParts,
        discriminator: FlatState | None,
    ) -> None:
        self.work, self.settings, self.shared = work, settings, shared
        self.network = Part(work.flat, work.plan, prefix="network.", head=work.head)
        parts = [self.network]
        self.discriminator = discriminator
        if discriminator is not None:
            self.critic = Part(discriminator, work.plan, lr=settings.discriminator_lr)
            parts.append(self.critic)
        if shared.generator is not None:
            self.generator = Part(work.flat, work.plan, prefix="generator.", lr=settings.generator_lr)
            parts.append(self.generator)
        self._optimizers = [part.optimizer for part in parts]
        self._chosen = settings.chosen
        self._noise = work.generator("fedadg: noise")
        self._smoothing = settings.smoothing(work.plan)
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def run(self) -> None:
        """Run both phases; without a discriminator the second is classification too, on the same batches."""
        self.shared.train()
        epochs, length = self.settings.epochs(self.work.plan), self._chosen.rate_warm_up
        rising = RateWarmUp(length, before=epochs.warm_up) if length else None
        for epoch, batch in self._batches(epochs.warm_up, "fedadg: warm-up", after=epochs.adversarial):
            if rising is not None:
                scale_rates(self._optimizers, rising.of_classification(epoch))
            self.classification_step(batch)
        for epoch, batch in self._batches(epochs.adversarial, "fedadg: adversarial", before=epochs.warm_up):
            if rising is not None:
                scale_rates(self._optimizers[:1], rising.of_network(epoch))
                scale_rates(self._optimizers[1:], rising.of_opponents(epoch))
            if self.discriminator is None:
                self.classification_step(batch)
            else:
                self.adversarial_step(batch, self.discriminator.module)

    def _batches(
        self, epochs: int, purpose: str, *, before: int = 0, after: int = 0
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of a phase, each with its epoch counted from 0.

        before, after  epochs of the other phase, so that a schedule within rounds goes through both
        """
        if not epochs:
            return
        plan = replace(self.work.plan, epochs=epochs)
        steps = count_batches(len(self.work.train), plan.batch_size, plan.batches_per_epoch)
        batches = self.work.batches(
            plan=plan, purpose=purpose, optimizers=self._optimizers, before=before, after=after
        )
        for number, batch in enumerate(batches):
            yield number // steps, batch

    def means(self) -> dict[str, float]:
        """Return means over the adversarial phase: losses and the discriminator's scores."""
        return {name: self._sums[name] / self._counts[name] for name in self._sums}

    def classification_step(self, batch: Batch) -> None:
        """Run step c3: F and C minimize L_err."""
        with blocked_maps():
            features = self.shared.features(batch.inputs)
        loss = self._classification_loss(features, batch)
        self.network.minimise(loss)
        self.work.meter(loss, batch)

    def adversarial_step(self, batch: Batch, discriminator: nn.Module) -> None:
        """Run steps c5 to c8: F and C, then D, then G, each against the others as updated.

        In the order of the released programs D comes first, and F and C learn against the D that was updated.
        """
        labels = self.labels(batch)
        if self._chosen.order == "extractor-first":
            self.extractor_step(batch, labels, discriminator)
        generated = self.reference(labels)
        self.discriminator_step(batch, labels, generated.detach(), discriminator)
        if self._chosen.order == "discriminator-first":
            self.extractor_step(batch, labels, discriminator)
        if self.shared.generator is not None:
            self.generator_step(labels, generated, discriminator)

    def extractor_step(self, batch: Batch, labels: Tensor, discriminator: nn.Module) -> None:
        """Run step c5: F and C minimize lambda0 * L_adv_f + lambda1 * L_err (equation 5)."""
        with blocked_maps():
            features = self.shared.features(batch.inputs)
        classification = self._classification_loss(features, batch)
        adversarial = extractor_loss(discriminator(features, labels))
        lambda0, lambda1 = self.settings.loss_weights
        loss = lambda0 * adversarial + lambda1 * classification
        self.network.minimise(loss)
        self.work.meter(loss, batch)
        self._note("extractor_loss", adversarial, len(labels))
        self._note("classification_loss", classification, len(labels))

    def discriminator_step(
        self, batch: Batch, labels: Tensor, generated: Tensor, discriminator: nn.Module
    ) -> None:
        """Run step c7: D minimizes L_adv_d (equation 2) on features of the extractor as it now is.

        Where D comes first, its features are computed in evaluation mode, as in the released programs.
        """
        network = self.shared.network
        first = self._chosen.order == "discriminator-first"
        mode = evaluation_mode(network) if first else keep_running_statistics(network)
        with torch.no_grad(), mode, blocked_maps():
            extracted = self.shared.features(batch.inputs)
        on_extracted, on_generated = discriminator(extracted, labels), discriminator(generated, labels)
        loss = discriminator_loss(on_extracted, on_generated, form=self._chosen.discriminator_loss)
        self.critic.minimise(loss)
        self._note("discriminator_loss", loss, len(labels))
        self._note("score_extracted", on_extracted.mean(), len(labels))
        self._note("score_generated", on_generated.mean(), len(labels))

    def generator_step(self, labels: Tensor, generated: Tensor, discriminator: nn.Module) -> None:
        """Run step c8: G minimizes L_adv_g (equation 4) on the noise of c6, against D after c7.

        A detached generator's loss is only recorded.
        """
        loss = generator_loss(discriminator(generated, labels), goal=self._chosen.generator_goal)
        if not self._chosen.detached_generator:
            self.generator.minimise(loss)
        self._note("generator_loss", loss, len(labels))

    def labels(self, batch: Batch) -> Tensor:
        """Encode labels one-hot, or as no columns where alignment is not class-wise."""
        if not self.settings.one_hot:
            return batch.inputs.new_empty(len(batch.targets), 0)
        encoded = F.one_hot(batch.targets, self.shared.network.head.out_features)
        return encoded.to(batch.inputs.dtype) * self._chosen.one_hot_value

    def reference(self, labels: Tensor) -> Tensor:
        """Run step c6: generate features from uniform noise, or draw from a fixed distribution."""
        if self.shared.generator is None:
            width = self.shared.network.feature_size
            return draw_fixed_reference(
                self.settings.reference, len(labels), width, generator=self._noise, device=labels.device
            )
        noise = torch.rand(len(labels), self.shared.generator.noise_size, generator=self._noise)
        features: Tensor = self.shared.generator(noise.to(labels.device), labels)
        return features

    def _classification_loss(self, features: Tensor, batch: Batch) -> Tensor:
        logits = self.shared.classify(features)
        return self.work.task_loss(logits, batch.targets, label_smoothing=self._smoothing)

    def _note(self, name: str, value: Tensor, count: int) -> None:
        self._sums[name] += value.item() * count
        self._counts[name] += count


@contextmanager
def keep_running_statistics(network: nn.Module) -> Iterator[None]:
    """Use the batch's statistics in batch norms without updating running statistics a second time.

    The discriminator must get features in training mode, like the extractor's loss, but its pass is the
    second one over the same batch.
    """
    tracking = [
        layer for layer in network.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats
    ]
    for layer in tracking:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Switch a network to evaluation mode, and each of its parts back to its own mode afterwards."""
    modes = {part: part.training for part in network.modules()}
    network.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
