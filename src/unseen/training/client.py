"""Local training of one client: what it may read, the training loop, and what it may send.

A method's client half gets a `ClientWork` and returns an `Update`. Nothing else is accessible from there: no
other client, no held-out domain, no file, no screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from unseen.data import Batch, Samples
from unseen.errors import UnseenError, UsageError
from unseen.models import FlatState, Network, blocked_maps
from unseen.seeding import torch_generator
from unseen.training.feature_augment import FeatureAugmenter
from unseen.training.gradient_rules import GRADIENT_RULES, GradientRule, clip_gradients, perturbed
from unseen.training.local_config import LocalTrainingConfig
from unseen.training.optimizer_state import load_state, pick_state, read_state
from unseen.training.optimizers import FlatOptimizer, make_optimizer, scale_rates
from unseen.training.preprocessing import PREPARED_AT_ONCE, Preprocessor, batch_positions, count_batches

OPTIMIZER_STATE = "optimizer state"
"""Start of the keys in a client's state under which `--keep-optimizer-state` keeps its optimizers."""
Loss = Callable[[Batch], Tensor]
AdjustGradient = Callable[[Tensor, Tensor], None]
AfterStep = Callable[[Tensor], None]
Draw = Callable[..., Iterator[Tensor]]
"""Function that draws the positions of one epoch's batches; called like `batch_positions`."""
Differentiate = Callable[[Loss, Batch], Tensor]
"""Function that writes the gradient of a loss on a batch to the flat gradient and returns the loss."""


@dataclass(frozen=True)
class Update:
    """Result of a client's local training, sent to the server.

    weights      its whole state as a flat vector
    samples      number of its training samples
    steps        number of optimizer steps
    seen         number of samples trained on, repetitions counted
    loss         mean training loss, for the progress line
    extras       whatever else the method sends; every key is declared in `Method.sends`
    diagnostics  numbers that show what the method did here, for the records
    withheld     why the client does not send its update; all other fields are then ignored
    """

    weights: Tensor
    samples: int
    steps: int
    seen: int
    loss: float
    extras: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    withheld: str = ""

    @property
    def nbytes(self) -> int:
        """Size of what is sent to the server."""
        return self.weights.nbytes + sum(value.nbytes for value in self.extras.values())


@dataclass
class ClientWork:
    """Everything that the client half of a method may use.

    module, flat  the shared model, already loaded with the server's weights, and its flat view
    start         the server's weights as they arrived
    received      what the server sent in addition
    state         the client's state: kept across rounds, never sent
    progress      called with the number of samples after every batch
    draw          how batches are drawn
    differentiate how `fit` computes gradients instead of a backward pass; set by protections (DP-SGD)
    head          places of the deployed network's head in the flat parameters
    augmenter     augmentations inside the network, attached to it while the client trains
    kept_optimizers  whether `fit` kept the state of its optimizers for the next round
    secret_seed   a secret that takes the place of `seed` in the client's own draws; set by protections
    """

    client: str
    round: int
    seed: int
    module: nn.Module
    flat: FlatState
    start: Tensor
    train: Samples
    validation: Samples
    plan: LocalTrainingConfig
    prepare: Preprocessor
    received: Mapping[str, Tensor] = field(default_factory=dict)
    state: MutableMapping[str, Tensor] = field(default_factory=dict)
    progress: Callable[[int], None] = lambda _: None
    draw: Draw = batch_positions
    differentiate: Differentiate | None = None
    head: Sequence[slice] = ()
    augmenter: FeatureAugmenter | None = None
    secret_seed: int | None = None
    kept_optimizers: bool = False
    _steps: int = 0
    _samples_seen: int = 0
    _loss_sum: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))

    @property
    def steps(self) -> int:
        """Number of optimizer steps taken so far in this round."""
        return self._steps

    def generator(self, purpose: str) -> torch.Generator:
        """Create the client's generator for a purpose in this round."""
        return torch_generator(self.own_seed, purpose, self.client, self.round)

    @property
    def own_seed(self) -> int:
        """Seed of draws that concern this client alone, such as batch order; `seed` is for shared ones."""
        return self.seed if self.secret_seed is None else self.secret_seed

    def task_loss(self, outputs: Tensor, targets: Tensor, *, label_smoothing: float | None = None) -> Tensor:
        """Compute the task's loss, with the plan's label smoothing unless given.

        Augmentations at the network's head act here: on the features that gave `outputs`, and on `outputs`.
        """
        smoothing = self.plan.label_smoothing if label_smoothing is None else label_smoothing
        if self.augmenter is None:
            return self.train.task_type.loss(outputs, targets, label_smoothing=smoothing)
        outputs = self.augmenter.change_outputs(outputs, targets)
        value = self.train.task_type.loss(outputs, targets, label_smoothing=smoothing)
        return self.augmenter.add_penalties(value, outputs)

    def batches(
        self,
        *,
        plan: LocalTrainingConfig | None = None,
        purpose: str = "training",
        samples: Samples | None = None,
        optimizers: Sequence[FlatOptimizer] = (),
        before: int = 0,
        after: int = 0,
    ) -> Iterator[Batch]:
        """Yield prepared batches of all epochs of a plan over samples, both the client's own unless given.

        Two passes in one round need two purposes, or they would draw the same order. The learning rates of
        `optimizers` follow the schedule where it changes them within a round.

        before, after  epochs of other passes in this round, which count for the schedule too
        """
        order, augment = self.generator(f"{purpose}: order"), self.generator(f"{purpose}: augmentation")
        plan, samples = plan or self.plan, self.train if samples is None else samples
        # A protection's draws share a stream with its noise, so none of them may be drawn ahead of its turn.
        at_once = PREPARED_AT_ONCE // plan.batch_size if self.draw is batch_positions else 1
        steps = count_batches(len(samples), plan.batch_size, plan.batches_per_epoch)
        whole = replace(plan, epochs=before + plan.epochs + after)
        for epoch in range(before, before + plan.epochs):
            positions = self.draw(
                len(samples), plan.batch_size, generator=order, batches=plan.batches_per_epoch
            )
            for step, batch in enumerate(self.prepare.batches(samples, positions, augment, at_once=at_once)):
                if plan.round is not None:
                    scale_rates(optimizers, whole.factor_within(epoch, step, steps=steps))
                yield batch
                self._steps += 1
                self._samples_seen += len(batch.targets)
                self.progress(len(batch.targets))

    def meter(self, loss: Tensor, batch: Batch) -> None:
        """Count a batch's loss towards the mean that is reported."""
        self._loss_sum.add_(loss.detach().cpu(), alpha=len(batch.targets))

    def fit(
        self,
        loss: Loss,
        *,
        plan: LocalTrainingConfig | None = None,
        purpose: str = "training",
        samples: Samples | None = None,
        companions: Sequence[FlatState] = (),
        adjust_gradient: AdjustGradient | None = None,
        after_step: AfterStep | None = None,
        gradient_rule: GradientRule | None = None,
    ) -> None:
        """Train the shared module on `loss`.

        plan             the client's own unless given
        purpose          names the pass; where optimizers keep their state over rounds, by purpose
        samples          the client's training samples unless given
        companions       modules that are also trained and stay on the client (bound to flat states)
        adjust_gradient  called with the flat parameters and gradient of the shared module before every step,
                         to change the gradient in place (proximal terms, control variates); after the
                         plan's gradient rule and clipping, which concern the loss alone
        after_step       called with the flat parameters after every step, to change them in place
        gradient_rule    where a batch's gradient is computed, for methods with a rule of their own
        """
        if self.differentiate is not None and companions:
            raise UsageError(
                "modules that are also trained (companions) would carry samples unprotected into the "
                "model's gradients; use another --method, or --protect none"
            )
        plan = plan or self.plan
        trained = [self.flat, *companions]
        differentiate = self._differentiate_by(gradient_rule, plan, trained)
        gradients = [flat.gradient for flat in trained]
        unwatched = adjust_gradient is None and differentiate == self._backward and plan.clip_norm is None
        optimizers = [
            make_optimizer(
                plan,
                flat.parameters,
                flat.gradient,
                in_gradient=unwatched,
                head=self.head if flat is self.flat else (),
            )
            for flat in trained
        ]
        if plan.keep_state:
            self._load_optimizers(optimizers, purpose)
        for flat in trained:
            flat.module.train()
        for batch in self.batches(plan=plan, purpose=purpose, samples=samples, optimizers=optimizers):
            for optimizer in optimizers:
                optimizer.clear()
            value = differentiate(loss, batch)
            if plan.clip_norm is not None:
                clip_gradients(gradients, plan.clip_norm)
            if adjust_gradient is not None:
                adjust_gradient(self.flat.parameters, self.flat.gradient)
            for optimizer in optimizers:
                optimizer.step()
            if after_step is not None:
                after_step(self.flat.parameters)
            self.meter(value, batch)
        if plan.keep_state:
            self._keep_optimizers(optimizers, purpose)

    def _load_optimizers(self, optimizers: Sequence[FlatOptimizer], purpose: str) -> None:
        """Let optimizers continue where the client's latest round left them."""
        for place, optimizer in enumerate(optimizers):
            load_state(optimizer, pick_state(self.state, _optimizer_key(purpose, place)))

    def _keep_optimizers(self, optimizers: Sequence[FlatOptimizer], purpose: str) -> None:
        """Keep the optimizers' state for the client's next round, unless it is not finite.

        Training that diverged would leave a state with which every later round diverges too.
        """
        for key in [key for key in self.state if key.startswith(f"{OPTIMIZER_STATE} of {purpose}, ")]:
            del self.state[key]
        found = {
            _optimizer_key(purpose, place) + name: value
            for place, optimizer in enumerate(optimizers)
            for name, value in read_state(optimizer).items()
        }
        self.kept_optimizers = True
        if all(_all_finite(value) for value in found.values()):
            self.state.update(found)

    def _differentiate_by(
        self, own: GradientRule | None, plan: LocalTrainingConfig, trained: Sequence[FlatState]
    ) -> Differentiate:
        """Return how a batch's gradient is computed: as the protection and the rule demand."""
        if own is not None and plan.sharpness != "none":
            raise UsageError(
                f"this --method has a gradient rule of its own, and --sharpness {plan.sharpness} is another: "
                "use --sharpness none, or another --method"
            )
        rule, once = own or GRADIENT_RULES[plan.sharpness], self.differentiate or self._backward
        if rule.perturbation is None:
            return once
        perturbation, rho = rule.perturbation, rule.radius(plan.rho) or 0.0
        if not rule.needs_gradient:

            def differentiate_shifted(loss: Loss, batch: Batch) -> Tensor:
                with perturbed(trained, perturbation, rho, only_pass=True):
                    return once(loss, batch)

            return differentiate_shifted
        if self.differentiate is not None:
            asks = "this --method" if own is not None else f"--sharpness {plan.sharpness}"
            raise UsageError(
                f"{asks} needs a second gradient of every batch, which differential "
                "privacy of samples does not account for; use --sharpness none, or another --protect"
            )

        def differentiate_twice(loss: Loss, batch: Batch) -> Tensor:
            value = self._backward(loss, batch).detach()
            with perturbed(trained, perturbation, rho):
                self._backward(loss, batch)
            return value

        return differentiate_twice

    def _backward(self, loss: Loss, batch: Batch) -> Tensor:
        with blocked_maps():
            value = loss(batch)
        value.backward()
        return value

    def update(
        self, *, extras: dict[str, Tensor] | None = None, diagnostics: dict[str, Any] | None = None
    ) -> Update:
        """Create the update: the module's current state and what is sent with it."""
        return Update(
            weights=self.flat.read(),
            samples=len(self.train),
            steps=self._steps,
            seen=self._samples_seen,
            loss=float(self._loss_sum) / max(self._samples_seen, 1),
            extras=extras or {},
            diagnostics=diagnostics or {},
        )


def _optimizer_key(purpose: str, place: int) -> str:
    return f"{OPTIMIZER_STATE} of {purpose}, module {place}: "


@contextmanager
def augmented_inside(work: ClientWork, network: Network) -> Iterator[None]:
    """Within the block, apply the augmentations that act inside the network a client trains."""
    steps = work.prepare.augmentations
    if not steps.in_network:
        yield
        return
    augmenter = FeatureAugmenter(steps, network, work.generator("feature augmentation"))
    with augmenter.attached():
        work.augmenter = augmenter
        yield
    augmenter.require_effect()


def _all_finite(values: Tensor) -> bool:
    """Check whether all numbers are finite; a finite sum shows it in one pass, otherwise each is checked."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def reason_to_reject(update: Update, size: int) -> str | None:
    """Explain why a server must reject an update; None if it is valid."""
    if update.weights.shape != (size,):
        return f"sent {tuple(update.weights.shape)} numbers where the model has {size}"
    if not math.isfinite(update.loss):
        return "its training loss is not finite"
    if not _all_finite(update.weights):
        return "its weights contain NaN or infinite numbers"
    if not all(_all_finite(value) for value in update.extras.values()):
        return "what it sent with its weights contains NaN or infinite numbers"
    return None


class DivergedError(UnseenError):
    """No client returned a usable update."""
