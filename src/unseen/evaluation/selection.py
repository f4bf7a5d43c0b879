"""Model selection: which round's model is the result. Rules are pure functions of the records.

Only a rule that declares `uses_target` gets scores of the held-out domain. Of the built-in rules that is
`oracle`, which cannot be applied in practice: it exists for comparison with published numbers that were
selected that way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from unseen.fileio import Record
from unseen.registry import Registry
from unseen.tasks import goodness, primary_metric

VALIDATION_DOMAIN = "validation-domain"
"""The split of samples whose whole domain is kept for model selection."""
TARGET = "target"
"""The split of the held-out domains' samples."""
Rank = tuple[float, float, int]


class SelectionRule:
    """A rule that selects the round whose model is kept. Stateless.

    name                      what `--selection`, configurations and records call it
    label                     its name in tables
    summary                   how the round was selected, as a clause that explains a table
    heading                   its name after a metric: "accuracy (by validation)"; the label unless given
    chosen_by                 completes "round chosen by" on a run's page; the label unless given
    hint                      explains the headline number of a run's page; from the label unless given
    order                     position in tables, smaller first
    uses_target               whether it may see scores of the held-out domain
    needs_validation_domains  whether it needs domains that are kept for model selection
    spans_runs                whether it needs further runs, so that only a bench can apply it
    """

    name: ClassVar[str]
    label: ClassVar[str]
    summary: ClassVar[str]
    heading: ClassVar[str] = ""
    chosen_by: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    order: ClassVar[int] = 30
    uses_target: ClassVar[bool] = False
    needs_validation_domains: ClassVar[bool] = False
    spans_runs: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Fill in the texts that follow from the label."""
        super().__init_subclass__(**arguments)
        label = getattr(cls, "label", "")
        cls.heading = cls.heading or label
        cls.chosen_by = cls.chosen_by or label
        cls.hint = cls.hint or f"round chosen by: {label}"

    @property
    def description(self) -> str:
        """One line for `unseen list selection-rules`: the first line of the class docstring."""
        return (type(self).__doc__ or self.summary).partition("\n")[0]

    def rank(self, evaluation: Record, metric: str) -> Rank:
        """Return the rank of an evaluation: the largest is selected.

        It depends on this evaluation alone: a run keeps only the weights of the best round so far.
        """
        raise NotImplementedError


SELECTION_RULES: Registry[SelectionRule] = Registry("selection rule", group="unseen.selection_rules")
AnyRule = TypeVar("AnyRule", bound=SelectionRule)


def register_rule(rule: type[AnyRule]) -> type[AnyRule]:
    """Register one object of the decorated class under its name."""
    SELECTION_RULES.register(rule.name)(rule())
    return rule


class BestOn(SelectionRule):
    """Prefers the best primary metric on one split, then the lower loss, then the earlier round."""

    split: ClassVar[str]

    def rank(self, evaluation: Record, metric: str) -> Rank:
        """Rank by metric, loss and round."""
        value, loss = (
            goodness(name, _judged_value(evaluation, self.split, name)) for name in (metric, "loss")
        )
        return value, loss, -evaluation["round"]


@register_rule
class SourceValidation(BestOn):
    """The best round on validation samples of the source domains."""

    name, label, split, order = "source-validation", "source validation", "validation", 0
    summary = "the round was chosen by the sources' own validation data (honest)"
    heading = "by validation"
    chosen_by = "source validation (the honest rule)"
    hint = "round chosen by the sources’ validation data"


@register_rule
class LeaveOneDomainOut(SelectionRule):
    """The best round in additional runs that each hold out one more source; only in `unseen bench`."""

    name, label, order, spans_runs = "leave-one-domain-out", "leave-one-domain-out", 10, True
    summary = "the round was chosen by runs that left out one more source each (honest)"


@register_rule
class ValidationDomains(BestOn):
    """The best round on validation domains that are kept out of training, as in WILDS."""

    name, label, split, order = "validation-domains", "validation domains", VALIDATION_DOMAIN, 20
    summary = "the round was chosen by domains that were kept for this alone (honest)"
    heading = "by validation domains"
    chosen_by = "domains kept to choose it"
    hint = "round chosen by domains kept for that"
    needs_validation_domains = True


@register_rule
class LastRound(SelectionRule):
    """The last evaluated round, whatever its scores."""

    name, label, order = "last", "last round", 40
    summary = "no round was chosen"
    chosen_by = "none: the last round"
    hint = "last round"

    def rank(self, evaluation: Record, metric: str) -> Rank:
        """Rank by the round's number."""
        return 0.0, 0.0, evaluation["round"]


@register_rule
class Oracle(BestOn):
    """The best round on the held-out domain itself: optimistic, only for comparison with papers."""

    name, label, split, order, uses_target = "oracle", "oracle", TARGET, 50, True
    summary = (
        "the round was chosen with the labels of the held-out domain, which nobody has in practice "
        "(optimistic; only for comparing with papers that do so)"
    )
    chosen_by = "oracle: best on the held-out data"
    hint = "round chosen with the held-out labels: optimistic"


def list_rules() -> list[SelectionRule]:
    """List the rules in the order of all tables: the honest ones first, oracle last."""
    return sorted((SELECTION_RULES[name] for name in SELECTION_RULES), key=lambda rule: rule.order)


def rule_names() -> list[str]:
    """List the names of the rules that one run can apply, in the order of all tables."""
    return [rule.name for rule in list_rules() if not rule.spans_runs]


def rule_label(name: str) -> str:
    """Return a rule's name in tables; for one whose plugin is not loaded here, the name itself."""
    return SELECTION_RULES[name].label if name in SELECTION_RULES else name


def default_rule(*, validation_domains: bool) -> str:
    """Return the default rule of a run."""
    return ValidationDomains.name if validation_domains else SourceValidation.name


def needs_validation_domains(rule: str) -> bool:
    """Return whether a rule needs validation domains; unknown names are refused elsewhere."""
    return rule in SELECTION_RULES and SELECTION_RULES[rule].needs_validation_domains


def select(records: Sequence[Record], rule: str, task: str) -> Record | None:
    """Return the evaluation record that a rule prefers, or None when nothing was evaluated yet."""
    chooser = SELECTION_RULES[rule]
    metric, hide = primary_metric(task), not chooser.uses_target
    return max(
        _evaluations(records),
        key=lambda record: chooser.rank(without_target(record) if hide else record, metric),
        default=None,
    )


def evaluations_since_best(records: Sequence[Record], rule: str, task: str) -> int:
    """Count the evaluations after the one that a rule prefers; early stopping compares it with the patience.

    It depends on what the rule sees and on nothing else: on no score of the held-out domain, unless the rule
    declares that it uses them.
    """
    best = select(records, rule, task)
    return 0 if best is None else sum(record["round"] > best["round"] for record in _evaluations(records))


def explain_no_patience(rule: str) -> str | None:
    """Explain why a run with this rule cannot be stopped early; None if it can."""
    if rule == LastRound.name:
        return "it prefers every round to the one before, so that nothing ever fails to improve"
    if rule in SELECTION_RULES and SELECTION_RULES[rule].uses_target:
        return "it looks at the held-out domain, which would then decide how long the model is trained"
    return None


def _evaluations(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["event"] == "evaluation"]


def without_target(evaluation: Record) -> Record:
    """Copy an evaluation record without the scores of the held-out domains and of their groups."""
    return evaluation | {
        name: [score for score in evaluation[name] if score["split"] != TARGET]
        for name in ("scores", "groups")
        if name in evaluation
    }


def mean_metric(evaluation: Record, split: str, metric: str) -> float:
    """Compute the mean of a metric over the domains of a split, each domain counting the same."""
    values = [score["metrics"].get(metric) for score in evaluation["scores"] if score["split"] == split]
    finite = [value for value in values if value is not None and not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _judged_value(evaluation: Record, split: str, metric: str) -> float:
    """Return what ranks a round; on validation domains with groups, as in WILDS, of all samples."""
    if split == VALIDATION_DOMAIN:
        for score in evaluation.get("groups", ()):
            if score["split"] == split and score["group"] is None:
                value = score["metrics"].get(metric)
                return math.nan if value is None else value
    return mean_metric(evaluation, split, metric)
