"""FedADG: align the features of every client, class by class, to one jointly learned reference.

A generator creates the reference features; at each client a discriminator distinguishes them from extracted
ones, and the extractor learns to fool it. The discriminator never leaves its client.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn

from unseen.aggregation import ServerWork, client_weights
from unseen.errors import UsageError
from unseen.hparams import LogUniform, Settings, Uniform, setting
from unseen.methods.base import Method, Paper, register
from unseen.methods.fedadg.adversarial_training import LocalTraining
from unseen.methods.fedadg.fedadg_networks import (
    SharedParts,
    TwoLayerNetwork,
    make_discriminator,
    make_generator,
    projected_size,
)
from unseen.methods.fedadg.readings import (
    READINGS,
    DiscriminatorLoss,
    GeneratorGoal,
    Order,
    Reading,
    ReadingName,
)
from unseen.models import FlatState, Network
from unseen.seeding import global_torch_seed
from unseen.training import ClientWork, LocalTrainingConfig, Update

_WARM_UP_SHARE = 0.3
_LABEL_SMOOTHING = 0.1


class Epochs(NamedTuple):
    """E0 epochs of classification only, then E1 of alignment (algorithm 1)."""

    warm_up: int
    adversarial: int


@dataclass(frozen=True)
class FedADGSettings(Settings):
    """Settings of FedADG; those that are none by default are chosen by `reading`, and recorded."""

    reading: ReadingName = setting(
        "coherent",
        "what the unset settings below are: coherent = least squares, a generator that wants to be mistaken; "
        "printed = equations 2 and 4; released-pacs, released-vlcs = the authors' two programs",
        identifies=False,
    )
    adversarial_weight: float = setting(
        0.15,
        "lambda0: weight of the adversarial term for the extractor (paper 0.85, released code 0.15)",
        search=Uniform(0.05, 0.95),
    )
    classification_weight: float | None = setting(
        None, "lambda1: weight of the cross-entropy in addition; none = 1 - adversarial_weight"
    )
    warm_up_epochs: int | None = setting(
        None,
        "E0: epochs of cross-entropy only; none = 3 of every 10 local epochs, rounded (released: 3, 5)",
    )
    adversarial_epochs: int | None = setting(
        None,
        "E1: epochs of alternating updates; none = the other local epochs (released: 7, 10)",
    )
    generator_lr: float = setting(
        0.7, "learning rate of the generator, as a multiple of --lr", search=LogUniform(0.1, 2.0)
    )
    discriminator_lr: float = setting(
        0.7, "learning rate of the discriminator, as a multiple of --lr", search=LogUniform(0.1, 2.0)
    )
    reference: Literal["generator", "normal", "uniform", "laplace", "none"] = setting(
        "generator",
        "what features are aligned to: the shared generator, or draws that are normal, uniform or laplace; "
        "none = no alignment at all",
    )
    one_hot: bool = setting(True, "whether generator and discriminator get the label (class-wise alignment)")
    projection: bool = setting(True, "whether a random projection precedes the discriminator")
    projection_size: int | None = setting(
        None, "width after the projection, below the feature's; none = a quarter of the feature"
    )
    noise_size: int | None = setting(None, "length of the generator's noise z; none = half of the feature")
    generator_output: Literal["relu", "linear"] = setting(
        "relu", "last layer of the generator; linear for networks whose features can be negative"
    )
    generator_goal: GeneratorGoal | None = setting(
        None,
        "generator's loss: mistaken = D^2, which moves generated features towards extracted ones (default); "
        "recognised = (1 - D)^2 (equation 4)",
        formerly="recognised",
    )
    discriminator_loss: DiscriminatorLoss | None = setting(
        None,
        "least-squares = D(h)^2 + (1 - D(h'))^2 (default); equation-2 = -(1 - D(h))^2 - D(h')^2",
        formerly="equation-2",
    )
    label_smoothing: float | None = setting(
        None,
        "of the cross-entropy; none = the run's --label-smoothing or, where that is 0, 0.1 (released: 0.1 or "
        "0.2)",
    )
    order: Order | None = setting(
        None,
        "who is updated first in a step: extractor-first (algorithm 1, default), or discriminator-first, on "
        "features computed in evaluation mode (released)",
        absent="extractor-first",
    )
    rate_warm_up: int | None = setting(
        None,
        "epochs in which all learning rates rise, starting over in every round (released: 100, 500); 0 = "
        "the run's schedule alone, none = as in the reading",
        absent=None,
    )
    one_hot_value: float | None = setting(
        None, "entry of the one-hot label (default 1; released: 0.7, 0.6)", absent=1.0
    )
    detached_generator: bool | None = setting(
        None,
        "whether the generator's loss does not reach it: it never learns (released for VLCS)",
        absent=False,
    )
    trained_projection: bool | None = setting(
        None, "whether the random projection is trained with the discriminator (released)", absent=False
    )
    projected_label: bool | None = setting(
        None, "whether the label enters in front of the projection (released for VLCS)", absent=False
    )
    classifier_layers: int | None = setting(
        None,
        "linear layers of the classifier: 1 (default), or 2 with nothing between them (released)",
        absent=1,
    )

    def __post_init__(self) -> None:
        for name, value in vars(READINGS[self.reading]).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        _require(
            0 <= self.adversarial_weight <= (1 if self.classification_weight is None else float("inf")),
            f"adversarial_weight must be in [0, 1] (above 1 only with classification_weight set), "
            f"not {self.adversarial_weight}",
        )
        _require(
            self.classification_weight is None or self.classification_weight >= 0,
            f"classification_weight must not be negative, not {self.classification_weight}",
        )
        for name in ("warm_up_epochs", "adversarial_epochs"):
            value = getattr(self, name)
            _require(value is None or value >= 0, f"{name} must not be negative, not {value}")
        for name in ("generator_lr", "discriminator_lr"):
            _require(getattr(self, name) > 0, f"{name} must be above 0, not {getattr(self, name)}")
        _require(
            self.rate_warm_up is None or self.rate_warm_up >= 0,
            f"rate_warm_up must not be negative, not {self.rate_warm_up}",
        )
        for name in ("projection_size", "noise_size"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{name} must be at least 1, not {value}")
        _require(
            self.label_smoothing is None or 0 <= self.label_smoothing < 1,
            f"label_smoothing must be in [0, 1), not {self.label_smoothing}",
        )
        _require(self.chosen.one_hot_value > 0, f"one_hot_value must be above 0, not {self.one_hot_value}")
        _require(
            self.classifier_layers in (1, 2),
            f"classifier_layers must be 1 or 2, not {self.classifier_layers}",
        )

    @property
    def chosen(self) -> Reading:
        """The reading with the settings that override it."""
        return Reading(**{item.name: getattr(self, item.name) for item in fields(Reading)})

    @property
    def loss_weights(self) -> tuple[float, float]:
        """Weights (lambda0, lambda1) of equation 5."""
        rest = self.classification_weight
        return self.adversarial_weight, 1 - self.adversarial_weight if rest is None else rest

    def epochs(self, plan: LocalTrainingConfig) -> Epochs:
        """Split the local epochs of a plan."""
        return self.split_epochs(plan.epochs)

    def split_epochs(self, local: int) -> Epochs:
        """Split local epochs: 10 become 3 + 7 as in the paper, 5 become 2 + 3, 1 becomes 0 + 1."""
        warm_up, adversarial = self.warm_up_epochs, self.adversarial_epochs
        if warm_up is None:
            warm_up = round(_WARM_UP_SHARE * local) if adversarial is None else local - adversarial
        if adversarial is None:
            adversarial = local - warm_up
        _require(
            min(warm_up, adversarial) >= 0 and warm_up + adversarial >= 1,
            f"warm_up_epochs and adversarial_epochs do not fit {local} local epochs: give both, "
            "or one that is not above the local epochs",
        )
        return Epochs(warm_up, adversarial)

    def smoothing(self, plan: LocalTrainingConfig) -> float:
        """Label smoothing of the cross-entropy."""
        if self.label_smoothing is not None:
            return self.label_smoothing
        return plan.label_smoothing or _LABEL_SMOOTHING


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)


_DISCRIMINATOR = "discriminator"
"""Key in a client's state: the weights of its discriminator, projection included."""


@register
class FedADG(Method[FedADGSettings]):
    """Federated adversarial domain generalization (algorithm 1 of the paper).

    F is the network up to its features, C its head; both and the generator G are averaged with equal
    weights, the discriminator D is part of the client's state. Deployed are F and C.
    """

    name = "fedadg"
    title = "FedADG"
    summary = "features aligned class by class to a learned reference distribution, adversarially"
    paper = Paper(
        title="Federated Learning for IoT Devices with Domain Generalization",
        authors="Zhang, Lei, Shi, Huang, Chen",
        year=2023,
        venue="IEEE Internet of Things Journal",
        url="https://doi.org/10.1109/JIOT.2023.3234977",
    )
    sends = ("model weights", "weights of the feature generator", "number of samples")
    in_state = ("model weights", "weights of the feature generator")
    beyond_losses = "it also trains a discriminator on its samples"
    own_optimizers = "it trains three networks in turn, each with an optimizer that starts anew in a round"
    default_weighting = "uniform"
    fixed_weights = ""

    def training_schedule(
        self, *, rounds: int, local_epochs: int, batches_per_epoch: int | None
    ) -> list[tuple[int, int | None]]:
        """Count the epochs of both phases, which settings may name instead of --local-epochs."""
        return [(rounds * sum(self.settings.split_epochs(local_epochs)), batches_per_epoch)]

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Join the network with the generator, if there is one (step s1)."""
        projected_size(network, self.settings)
        if self.settings.classifier_layers == 2:
            with global_torch_seed(seed, "fedadg: classifier"):
                network = TwoLayerNetwork(network, nn.Linear(network.feature_size, network.feature_size))
        if self.settings.reference != "generator":
            return SharedParts(network, None)
        with global_torch_seed(seed, "fedadg: generator"):
            return SharedParts(network, make_generator(network, self.settings))

    def deployed(self, module: nn.Module) -> Network:
        """Return F and C."""
        return cast(SharedParts, module).network

    def client(self, work: ClientWork) -> Update:
        """Train F, C and G against the client's own discriminator, which continues from its last round."""
        if work.plan.sharpness != "none":
            raise UsageError(
                f"fedadg minimizes three losses in turn, each with its own gradient, and --sharpness "
                f"{work.plan.sharpness} is for one; use --sharpness none, or another --method"
            )
        if self.settings.rate_warm_up and work.plan.changes_within_round:
            raise UsageError(
                "fedadg's rate_warm_up changes learning rates epoch by epoch in every round, which "
                f"does not combine with --schedule-per {work.plan.schedule_per}; use --schedule-per round"
            )
        shared = cast(SharedParts, work.module)
        discriminator = self._discriminator(work, shared.network)
        training = LocalTraining(work, self.settings, shared=shared, discriminator=discriminator)
        training.run()
        if discriminator is not None:
            work.state[_DISCRIMINATOR] = discriminator.read()
        return work.update(diagnostics=training.means())

    def server(self, work: ServerWork) -> Tensor:
        """Average F, C and G over the clients, with equal weights in the paper (step s3)."""
        return work.updates.mean(client_weights(work.updates.samples, self.weighting))

    def _discriminator(self, work: ClientWork, network: Network) -> FlatState | None:
        """Load the client's discriminator from its state, or make a new one in its first round."""
        if self.settings.reference == "none":
            return None
        if self.settings.one_hot and not work.train.task_type.has_classes:
            raise UsageError(
                "fedadg aligns features class by class and a regression has no classes: "
                "use --set one_hot=false to align them as a whole, or another --method"
            )
        with global_torch_seed(work.seed, "fedadg: discriminator", work.client):
            flat = FlatState(make_discriminator(network, self.settings).to(work.start.device))
        if _DISCRIMINATOR in work.state:
            flat.load(work.state[_DISCRIMINATOR])
        return flat
