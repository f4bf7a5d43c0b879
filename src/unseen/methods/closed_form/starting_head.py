"""The start of a trained head in closed form, before the first round: `--head ridge`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from unseen.aggregation import ServerWork
from unseen.errors import UsageError, unknown_name
from unseen.methods.base import METHODS, Method, make_method
from unseen.methods.closed_form.closed_form_method import ClosedFormMethod, send_statistics
from unseen.methods.closed_form.linear_head import count_features, count_outputs
from unseen.methods.closed_form.zero_shot import ZeroShot
from unseen.privacy import MethodTraits
from unseen.training import ClientWork, Update

RANDOM = "random"
START_ROUND = 0
"""Number of the exchange in messages and records; rounds of training are counted from 1."""


class StartingHead:
    """A closed form in front of a method: it sets the head of the method's deployed network, once.

    Its outputs have the scale at which their cross-entropy on the sources is near its smallest, so that
    training goes on from where the closed form ends: scores of 0 and 1 would begin with nearly the loss of
    a random head.
    """

    def __init__(self, form: ClosedFormMethod[Any], method: Method[Any]) -> None:
        self.form, self.method = form, method
        self._place = "head"

    @property
    def traits(self) -> MethodTraits:
        """Traits of the exchange; where the method pools the data, nothing leaves in it."""
        pooled = self.method.topology == "pooled"
        return replace(self.form.traits, topology="pooled") if pooled else self.form.traits

    def describe_extras(self, module: nn.Module) -> dict[str, Tensor]:
        """Describe the sums that a client sends; empty for a head that `bind` refuses."""
        network = self.method.deployed(module)
        return self.form.describe_statistics(network) if isinstance(network.head, nn.Linear) else {}

    def bind(self, module: nn.Module) -> None:
        """Find the head of the deployed network in the module that clients send."""
        head = self.method.deployed(module).head
        names = [name for name, part in module.named_modules() if part is head]
        if not isinstance(head, nn.Linear) or head.bias is None or not names:
            raise UsageError(
                f"--head {self.form.name} needs one linear head with a bias, which {self.method.name} does "
                f"not have: use --head {RANDOM}"
            )
        self._place = names[0]

    def client(self, work: ClientWork) -> Update:
        """Send sums over the samples' features."""
        return send_statistics(self.form.statistics, self.method.deployed(work.module), work)

    def server(self, work: ServerWork) -> Tensor:
        """Solve for the head and write it into the global state."""
        layout = work.updates.layout
        outputs = count_outputs(layout, head=self._place)
        samples = float(work.updates.samples.sum())
        solved = self.form.solve(work.updates.extras, outputs=outputs, samples=samples)
        work.diagnostics |= {f"head_{name}": value for name, value in solved.diagnostics.items()}
        features = count_features(layout, head=self._place)
        head = self.form.finish_head(solved.head, features=features, seed=work.seed)
        return head.write(work.weights, layout, head=self._place)


def make_starting_head(name: str, method: Method[Any]) -> StartingHead | None:
    """Make the start of a head by the name of a closed form; None where it needs no exchange with clients.

    That is a random head, and the zero-shot head, with which networks are built (`start_zero_shot`).
    """
    if name == RANDOM:
        return None
    forms = [known for known in METHODS if issubclass(METHODS[known], ClosedFormMethod)]
    if name not in (*forms, ZeroShot.name):
        raise unknown_name("start of the head", name, [RANDOM, *forms, ZeroShot.name])
    if method.own_head:
        raise UsageError(
            f"--head {name} cannot act on --method {method.name}, since {method.own_head}: leave it out"
        )
    if name == ZeroShot.name:
        return None
    form = make_method(name)
    assert isinstance(form, ClosedFormMethod)
    return StartingHead(form, method)
