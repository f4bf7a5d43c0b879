"""Fish: steps through the domains one after another, then part of the way there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from unseen.aggregation import WEIGHTING, ServerWork, Weighting, client_weights
from unseen.errors import UsageError
from unseen.hparams import Settings, Uniform, setting
from unseen.methods.base import Method, Paper, register
from unseen.methods.domain_objectives.domain_batches import draw_in_turn, group_by_domain
from unseen.training import ClientWork, Update
from unseen.training.preprocessing import count_batches


@dataclass(frozen=True)
class FishSettings(Settings):
    """Settings of Fish."""

    step: float = setting(
        0.5,
        "epsilon: part of the way of a lap through the domains that is kept, above 0 to 1; 1 is FedAvg on "
        "batches of one domain each; DomainBed draws 0.05, 0.1 or 0.5",
        search=Uniform(0.05, 1.0),
    )
    weighting: Weighting = setting("samples", WEIGHTING)

    def __post_init__(self) -> None:
        if not 0 < self.step <= 1:
            raise UsageError(f"setting 'step' of fish must be above 0 and at most 1, not {self.step}")


@register
class Fish(Method[FishSettings]):
    """w <- w + epsilon (w' - w): w' comes from w by one step on a batch of each domain in turn.

    To first order this raises the inner products of the domains' gradients. Statistics of batch norm go on
    as they are.
    """

    name = "fish"
    title = "Fish"
    summary = "clients with several domains: laps of one step per domain, then a part of the way"
    paper = Paper(
        title="Gradient Matching for Domain Generalization",
        authors="Shi, Seely, Torr, Siddharth, Hannun, Usunier, Synnaeve",
        year=2022,
        venue="ICLR",
        url="https://arxiv.org/abs/2104.09937",
    )
    domains_per_client = 2
    beyond_losses = "each of its batches holds one domain"
    mixed_targets = True

    def client(self, work: ClientWork) -> Update:
        """Train in laps; a lap also ends with its epoch."""
        groups, plan = group_by_domain(work, self), work.plan
        work.draw = draw_in_turn(list(groups.values()))
        per_epoch = count_batches(len(work.train), plan.batch_size, plan.batches_per_epoch)
        before, steps = work.flat.parameters.clone(), 0

        def end_lap(weights: Tensor) -> None:
            nonlocal steps
            steps += 1
            if (steps % per_epoch) % len(groups) == 0:
                weights.copy_(before.lerp(weights, self.settings.step))
                before.copy_(weights)

        work.fit(
            lambda batch: work.task_loss(work.module(batch.inputs), batch.targets),
            after_step=end_lap if self.settings.step != 1 else None,
        )
        return work.update()

    def server(self, work: ServerWork) -> Tensor:
        """Average the client models."""
        return work.updates.mean(client_weights(work.updates.samples, self.settings.weighting))
