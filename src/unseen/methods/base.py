"""Base class and registry of methods: settings, a client half, a server half and a paper each.

A method does not depend on processes, Flower, files or the screen; engines call its halves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, cast

from torch import Tensor, nn

from unseen.aggregation import WEIGHTINGS, GradientSurgery, Reduction, ServerWork, Weighting
from unseen.errors import UsageError, unknown_name
from unseen.hparams import Configurable, Settings, setting_names
from unseen.models import Network
from unseen.privacy import MethodTraits
from unseen.registry import Registry
from unseen.training import ClientWork, LocalTrainingConfig, Update

Topology = Literal["parallel", "serial", "pooled"]
Family = Literal["reference", "server rule", "client rule", "closed form", "prompt or adapter"]
FAMILIES: dict[Family, str] = {
    "reference": "what the others are compared with: the plain mean, pooled data, one client after another",
    "server rule": "clients train as in FedAvg, the server merges in another way",
    "client rule": "clients train in another way",
    "closed form": "the head on frozen features, in a single round",
    "prompt or adapter": "small parts added to a frozen pretrained model",
}
"""Families in the order of lists, with what their methods have in common."""
S = TypeVar("S", bound=Settings)
AS_THE_METHOD = "method"
"""Value of `--weighting` that leaves the weights to the method."""


@dataclass(frozen=True)
class Paper:
    """Publication that a method comes from.

    authors  family names, separated by commas
    url      DOI, arXiv or publisher link
    """

    title: str
    authors: str
    year: int
    venue: str
    url: str = ""


class Method(Configurable[S], ABC):
    """The client half and the server half of a method, and the traits that engines and protections use.

    name                      what `--method` takes
    title                     the name as the paper writes it, for tables and reports
    summary                   one line on what it does, for `unseen list methods`
    family                    group in `unseen list methods`; none = follows from the halves, `find_family`
    topology                  parallel: clients work at the same time on the same weights; serial: the
                              model visits them one after another; pooled: all data in one place
    circulates                whether clients of a round may start from models of their own (`start_states`),
                              which other clients have trained before; parallel methods only
    needs_individual_updates  whether the server half uses single clients' states; if not, sums suffice and
                              secure aggregation is possible; where settings decide, set on the instance
    sends                     the kinds of values that leave a client, for the privacy record; `Update.extras`
                              may only have keys named here; where settings decide, set on the instance
    in_state                  those of `sends` that are part of the flat state
    of_single_samples         those of `sends` that hold single samples: samples, labels, values of each; a
                              site refuses them unless its policy allows them
    keeps_statistics          whether clients keep their own batch norm, so that statistics are not merged
    merges                    of the extras: whether the server half needs only their `mean` over clients,
                              with the weights of the states, or their `sum`; what is not named here it
                              needs of each client, and secure summation cannot serve it
    no_average                why the server half is no average of the clients' states, so that no robust
                              aggregator can take its place; empty if it calls `work.updates.mean`
    default_weighting         weights of the clients in the paper, where no setting of the method chooses them
    weighting_setting         name of the setting that chooses them, in methods that have it
    fixed_weights             why `--weighting` cannot choose them; empty if the server half uses `weighting`;
                              none = not declared, which counts as fixed unless a setting chooses them
    own_optimizers            why the client half does not train by `work.fit`, so that there is nothing for
                              `--keep-optimizer-state` to keep; empty if it does
    domains_per_client        the smallest number of source domains of which each client must hold training
                              samples; above 1 for objectives that compare the domains of a client
    uses_taps                 whether the client half uses inner maps of the network (its taps)
    beyond_losses             how the client half uses its samples other than by the loss that each has alone,
                              given to `work.fit`; empty if it does not; none = not declared, which counts as
                              a use unless the client half is the default
    mixed_targets             whether the client half only passes targets to `work.task_loss`, so that one
                              may be a blend of two classes; none = yes if it is the default
    default_train             the part of the model that is trained unless --train says otherwise; none = the
                              option's own default
    default_rounds            the number of rounds after which nothing changes any more, which is then the
                              largest number that a run has; none = no such number
    effort_settings           settings that `--effort` chooses, so that a run keeps to its number of steps
    effort_options            options of the run that `--effort` chooses in place of its own
    needs_texts               whether it reads the names of the classes with the text tower of a CLIP; the
                              towers are then frozen, and `default_train` is the only choice
    own_head                  why `--head` cannot start the head; empty if it can
    """

    name: ClassVar[str]
    title: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[Paper]
    family: ClassVar[Family | None] = None
    topology: ClassVar[Topology] = "parallel"
    circulates: ClassVar[bool] = False
    needs_individual_updates: bool = False
    sends: tuple[str, ...] = ("model weights", "number of samples")
    in_state: tuple[str, ...] = ("model weights",)
    of_single_samples: ClassVar[tuple[str, ...]] = ()
    keeps_statistics: ClassVar[bool] = False
    merges: ClassVar[Mapping[str, Reduction]] = {}
    no_average: ClassVar[str] = ""
    default_weighting: ClassVar[Weighting] = "samples"
    weighting_setting: ClassVar[str] = "weighting"
    fixed_weights: ClassVar[str | None] = None
    own_optimizers: ClassVar[str] = ""
    domains_per_client: ClassVar[int] = 1
    uses_taps: ClassVar[bool] = False
    beyond_losses: str | None = None
    mixed_targets: bool | None = None
    default_train: ClassVar[str | None] = None
    default_rounds: ClassVar[int | None] = None
    effort_settings: ClassVar[Mapping[str, Any]] = {}
    effort_options: ClassVar[Mapping[str, Any]] = {}
    needs_texts: ClassVar[bool] = False
    own_head: ClassVar[str] = ""
    run_weighting: Weighting | None = None

    @classmethod
    def find_family(cls) -> Family:
        """Find the group of the method: its own, or the one that its topology and its halves imply."""
        if cls.family is not None:
            return cls.family
        if cls.topology != "parallel":
            return "reference"
        if cls.default_rounds is not None:
            return "closed form"
        return "server rule" if cls.client is Method.client else "client rule"

    @property
    def weighting(self) -> Weighting:
        """Weights of the clients in the mean that `server` computes: the run's, a setting's or the paper's.

        Where only sums are known, a client multiplies by this weight before it sends.
        """
        own = getattr(self.settings, self.weighting_setting, self.default_weighting)
        return self.run_weighting or cast(Weighting, own)

    @property
    def reweighting(self) -> str:
        """How the server half changes these weights by its own rule, for tables; empty if it does not."""
        return ""

    @property
    def weights_text(self) -> str:
        """The weights of the clients in a few words, for tables and records."""
        if self.explain_no_clients() or self.fixed_weights:
            return "none"
        if self.explain_fixed_weights():
            return "not declared"
        return ", ".join(filter(None, [self.weighting, self.reweighting]))

    def explain_few_domains(self, client: str, domains: Sequence[str]) -> str:
        """Explain why a client with training samples of these domains has too few; empty if it does not."""
        if len(domains) >= self.domains_per_client:
            return ""
        return (
            f"{self.name} compares the domains within a client, but client {client!r} holds only "
            f"{' and '.join(map(repr, domains))}: give each at least {self.domains_per_client} domains "
            "(--partition mixed --heterogeneity 0.5), or use another --method"
        )

    def explain_no_clients(self) -> str:
        """Explain why no clients are averaged at all; empty if they are."""
        if self.topology == "serial":
            return "its model passes from one client to the next, and nothing is averaged"
        return "it pools all data in one place, and nothing is averaged" if self.topology == "pooled" else ""

    def explain_fixed_weights(self) -> str:
        """Explain why `--weighting` cannot choose the weights of the clients; empty if it can."""
        undeclared = "" if self.weighting_setting in setting_names(self.settings) else _UNDECLARED_WEIGHTS
        return self.explain_no_clients() or (undeclared if self.fixed_weights is None else self.fixed_weights)

    @property
    def surgery(self) -> GradientSurgery | None:
        """Server half as gradient surgery, where the updates' Gram matrix is enough to combine them.

        Encryption supports such a method although it needs individual updates.
        """
        return None

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the settings, shown at the start of a run."""
        return ()

    @property
    def traits(self) -> MethodTraits:
        """Traits that protections use."""
        beyond = self.beyond_losses
        if beyond is None:
            beyond = "" if type(self).client is Method.client else MethodTraits.beyond_losses
        return MethodTraits(
            name=self.name,
            topology=self.topology,
            needs_individual_updates=self.needs_individual_updates,
            sends=self.sends,
            in_state=self.in_state,
            weighting=self.weighting,
            merges=self.merges,
            surgery=self.surgery,
            beyond_losses=beyond,
        )

    @property
    def accepts_mixed_targets(self) -> bool:
        """Whether clients can train on targets that are blends of classes."""
        if self.mixed_targets is None:
            return type(self).client is Method.client
        return self.mixed_targets

    def build(self, network: Network, *, seed: int) -> nn.Module:
        """Build the module that clients train and send; by default the network itself.

        Every process calls it, so whatever it adds must be drawn from `seed` alone.
        """
        return network

    def build_for(self, network: Network, *, sources: Sequence[str], seed: int) -> nn.Module:
        """Build the module, given the source domains' names; by default `build`, which does not use them.

        Engines and saved models call this one. Override it if the module has a part for every domain, and do
        not change `network`: it may be used again.
        """
        return self.build(network, seed=seed)

    def deployed(self, module: nn.Module) -> Network:
        """Return the network inside `module` that is evaluated, saved and exported."""
        return cast(Network, module)

    def describe_extras(self, module: nn.Module) -> Mapping[str, Tensor]:
        """Describe extras by tensors without memory (device meta), for estimates before a run.

        Kinds whose size depends on the client's data are left out; by default all are.
        """
        return {}

    def explain_unusable_extras(
        self, update: Update, *, plan: LocalTrainingConfig, outputs: int, own: Sequence[int]
    ) -> str:
        """Explain why `server` cannot take the extras of an update from another machine; "" if it can.

        Declared kinds, described shapes and finite numbers are checked already; here are the rest: kinds that
        belong together, ranges, and what follows from the number of samples or steps.

        outputs  number of the model's outputs
        own      positions of the client's domains among the source domains in the order of their names
        """
        return ""

    def broadcast(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select what the server sends to every client in addition to the weights."""
        return {}

    def start_states(
        self, clients: Sequence[str], *, round: int, seed: int, state: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Choose what each of a round's clients starts from, in new rows (clients x state).

        None = all start from the global weights, which is the default. Only methods that say `circulates`
        are asked.
        """
        return None

    def visiting_order(self, clients: Sequence[int], *, round: int, seed: int) -> Sequence[int]:
        """Choose the order in which a serial method visits a round's clients; by default the given one."""
        return clients

    def training_schedule(
        self, *, rounds: int, local_epochs: int, batches_per_epoch: int | None
    ) -> list[tuple[int, int | None]]:
        """Return (epochs, batches per epoch) of every phase of a client's training over a whole run.

        Estimates of a run's length use it; override it where rounds differ in length. None = all batches.
        """
        return [(rounds * local_epochs, batches_per_epoch)]

    def client(self, work: ClientWork) -> Update:
        """Run one client's part of a round; by default plain training on the task's loss."""
        work.fit(lambda batch: work.task_loss(work.module(batch.inputs), batch.targets))
        return work.update()

    @abstractmethod
    def server(self, work: ServerWork) -> Tensor:
        """Merge a round's updates into the new global weights."""


_UNDECLARED_WEIGHTS = "it does not declare that its server half uses the weights of a run (fixed_weights)"
METHODS: Registry[type[Method[Any]]] = Registry("method", group="unseen.methods", builtin=("unseen.methods",))


def group_by_family() -> dict[Family, list[type[Method[Any]]]]:
    """Group all registered methods by family, in the order of families; those without a method are absent."""
    groups: dict[Family, list[type[Method[Any]]]] = {family: [] for family in FAMILIES}
    for name in METHODS:
        groups[METHODS[name].find_family()].append(METHODS[name])
    return {family: methods for family, methods in groups.items() if methods}


def register(method: type[Method[Any]]) -> type[Method[Any]]:
    """Register a method under its name, for the command line, the bench, tests and docs.

    A method without a `title` is shown under its name.
    """
    if not hasattr(method, "title"):
        method.title = method.name
    return METHODS.register(method.name)(method)


def make_method(
    name: str, settings: Mapping[str, Any] | None = None, *, weighting: str = AS_THE_METHOD
) -> Method[Any]:
    """Create a method by name with its settings checked.

    weighting  weights of the clients in place of the method's own, which must agree with its setting
    """
    kind, given = METHODS[name], dict(settings or {})
    if weighting == AS_THE_METHOD:
        return kind.from_settings(given, owner=f"method {name!r}")
    if weighting not in WEIGHTINGS:
        raise unknown_name("weighting", weighting, (AS_THE_METHOD, *WEIGHTINGS))
    chosen = kind.weighting_setting
    if given.get(chosen, weighting) != weighting:
        raise UsageError(
            f"--weighting {weighting} and {name}'s setting {chosen}={given[chosen]} contradict each other: "
            "give one of them"
        )
    if chosen in setting_names(kind.settings_type()):
        given[chosen] = weighting
    method = kind.from_settings(given, owner=f"method {name!r}")
    if reason := method.explain_fixed_weights():
        raise UsageError(f"--weighting {weighting} cannot act on {name}: {reason}")
    method.run_weighting = cast(Weighting, weighting)
    return method
