"""Readings of FedADG: the coherent game, the printed equations, and the two programs that were released.

The paper's equations 2 and 4 make no adversarial game: equation 2 is concave, so that a discriminator does
best by calling everything the same, and under equation 4 the generator helps it. The authors' repository has
two programs, for PACS and for VLCS, which differ from the paper and from each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DiscriminatorLoss = Literal["equation-2", "least-squares"]
GeneratorGoal = Literal["recognised", "mistaken"]
Order = Literal["extractor-first", "discriminator-first"]
ReadingName = Literal["coherent", "printed", "released-pacs", "released-vlcs"]


@dataclass(frozen=True)
class Reading:
    """What a reading chooses; every field is also a setting, which overrides it.

    discriminator_loss    equation 2, or least squares: D(h)^2 + (1 - D(h'))^2
    generator_goal        recognised = (1 - D(h'))^2, equation 4; mistaken = D(h')^2
    order                 which of F and D is updated first in a step; where D is, it gets features that F
                          computes in evaluation mode
    warm_up_epochs        E0; None = 3 of every 10 local epochs
    adversarial_epochs    E1; None = the rest
    rate_warm_up          epochs in which learning rates rise, starting over in every round; None or 0 = none
    label_smoothing       of the cross-entropy; None = the run's or 0.1
    one_hot_value         entry of the label's one-hot code
    detached_generator    whether the generator's loss does not reach it, so that it never learns
    trained_projection    whether the random projection is trained with D
    projected_label       whether the label enters D in front of the projection
    classifier_layers     linear layers of the classifier C
    """

    discriminator_loss: DiscriminatorLoss = "least-squares"
    generator_goal: GeneratorGoal = "mistaken"
    order: Order = "extractor-first"
    warm_up_epochs: int | None = None
    adversarial_epochs: int | None = None
    rate_warm_up: int | None = None
    label_smoothing: float | None = None
    one_hot_value: float = 1.0
    detached_generator: bool = False
    trained_projection: bool = False
    projected_label: bool = False
    classifier_layers: int = 1


READINGS: dict[ReadingName, Reading] = {
    "coherent": Reading(),
    "printed": Reading(discriminator_loss="equation-2", generator_goal="recognised"),
    "released-pacs": Reading(
        order="discriminator-first",
        warm_up_epochs=3,
        adversarial_epochs=7,
        rate_warm_up=100,
        label_smoothing=0.1,
        one_hot_value=0.7,
        trained_projection=True,
        classifier_layers=2,
    ),
    "released-vlcs": Reading(
        discriminator_loss="equation-2",
        generator_goal="recognised",
        order="discriminator-first",
        warm_up_epochs=5,
        adversarial_epochs=10,
        rate_warm_up=500,
        label_smoothing=0.2,
        one_hot_value=0.6,
        detached_generator=True,
        trained_projection=True,
        projected_label=True,
        classifier_layers=2,
    ),
}


@dataclass(frozen=True)
class RateWarmUp:
    """Learning rates of the released programs, which rise in a straight line and start over in every round.

    They would reach their full value after `epochs`, more than a round has. The authors' scheduler counts the
    first epoch three times and leaves out one between the phases, as here.

    before  epochs of classification, E0
    """

    epochs: int
    before: int

    def of_classification(self, epoch: int) -> float:
        """Return the factor of F and C in an epoch of the first phase, counted from 0."""
        return max(epoch - 1, 1) / self.epochs

    def of_network(self, epoch: int) -> float:
        """Return the factor of F and C in an epoch of the adversarial phase."""
        return (epoch + self.before if epoch else max(self.before - 1, 1)) / self.epochs

    def of_opponents(self, epoch: int) -> float:
        """Return the factor of D and G in an epoch of the adversarial phase."""
        return max(epoch, 1) / self.epochs
