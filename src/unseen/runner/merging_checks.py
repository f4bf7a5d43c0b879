"""Check whether the server can bound single clients in a run: aggregator, largest weight, clipped steps."""

from __future__ import annotations

from typing import Any

from unseen.aggregation import Mean, MergingPlan, StepLimit, make_aggregator
from unseen.config import RunConfig
from unseen.errors import UsageError
from unseen.methods import METHODS, make_method
from unseen.methods.base import Method
from unseen.privacy import Protection
from unseen.runner.experiment_setup import averages_products


def merging_plan(config: RunConfig) -> MergingPlan:
    """Return the server's bounds on single clients that a configuration asks for."""
    if config.max_weight is not None and not 0 < config.max_weight <= 1:
        raise UsageError(f"--max-weight must be above 0 and at most 1, not {config.max_weight}")
    return MergingPlan(
        aggregator=make_aggregator(config.aggregate, config.aggregate_settings),
        max_weight=config.max_weight,
        limit=None if config.clip_update is None else StepLimit.parse(config.clip_update),
    )


def check_merging(config: RunConfig, method: Method[Any], protection: Protection[Any]) -> None:
    """Refuse bounds that cannot act in this run, with the reason."""
    plan = merging_plan(config)
    if not plan.acts:
        return
    robust = not isinstance(plan.aggregator, Mean)
    given = {
        f"--aggregate {config.aggregate}": robust,
        "--max-weight": plan.max_weight is not None,
        "--clip-update": plan.limit is not None,
    }
    named = " and ".join(name for name, used in given.items() if used)
    if protection.seals or protection.sums_only:
        raise UsageError(
            f"{named} needs each client's own update, and with --protect {protection.name} the server "
            "learns their sum only: no single one can be bounded there"
        )
    if method.topology == "pooled":
        raise UsageError(f"{named} bounds single clients, and {method.name} pools all data in one place")
    if robust and plan.max_weight is not None:
        raise UsageError(
            f"--max-weight bounds weights, and --aggregate {config.aggregate} counts every client once: "
            "leave one of them out"
        )
    reason = explain_no_average(method)
    if reason and (robust or plan.max_weight is not None):
        served = [name for name in METHODS if not explain_no_average(make_method(name))]
        asked = f"--aggregate {config.aggregate}" if robust else "--max-weight"
        raise UsageError(f"{asked} does not support {method.name}: {reason}. It supports {', '.join(served)}")
    if robust:
        _check_robust(config)


def check_weighting(config: RunConfig, protection: Protection[Any]) -> None:
    """Refuse weights by samples where every client counts once whatever it has."""
    if config.weighting != "samples":
        return
    cause = f"--protect {protection.name}" if protection.equal_weights else ""
    if not isinstance(make_aggregator(config.aggregate, config.aggregate_settings), Mean):
        cause = f"--aggregate {config.aggregate}"
    if cause:
        raise UsageError(
            f"--weighting samples has no effect with {cause}, which counts every client once: use "
            "--weighting uniform or method"
        )


def check_circulating(config: RunConfig, method: Method[Any]) -> None:
    """Refuse what compares clients with the global weights of a round where each has a model of its own."""
    if not method.circulates:
        return
    given = {
        "--clip-update": config.clip_update is not None,
        "--server-lr": config.server_lr != 1,
        "--lora-average products": averages_products(config),
    }
    for option, used in given.items():
        if used:
            raise UsageError(
                f"{option} acts on every round's step from the global weights, and in {method.name} clients "
                "start from models of their own, which are merged only after several rounds: leave it out"
            )


def _check_robust(config: RunConfig) -> None:
    """Refuse what else is averaged by other means than the aggregator."""
    if config.head != "random":
        raise UsageError(
            f"--head {config.head} solves from sums over all clients, which no aggregator makes robust: use "
            f"--head random with --aggregate {config.aggregate}"
        )
    if averages_products(config):
        raise UsageError(
            f"--lora-average products averages products of factors, not states: use frozen-a with "
            f"--aggregate {config.aggregate}"
        )
    if config.batch_norm == "pooled":
        raise UsageError(
            "--batch-norm pooled adds up moments, and a coordinate of a median could have a negative "
            f"variance: use --batch-norm train or frozen with --aggregate {config.aggregate}"
        )


def explain_no_average(method: Method[Any]) -> str:
    """Explain why a method's server half is no average of states that another could replace."""
    surgery = "it combines updates by their inner products" if method.surgery is not None else ""
    return method.explain_no_clients() or surgery or method.no_average
