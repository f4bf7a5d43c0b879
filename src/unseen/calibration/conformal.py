"""Conformal sets: scores of classes, and thresholds from the sources' histograms of scores.

A set holds every class whose score is below a threshold. Three scores, of probabilities p:

    lac   1 - p_y (Sadinle, Lei, Wasserman 2019): small sets, possibly empty
    aps   the mass of the classes likelier than y (Romano, Sesia, Candes 2020, without randomization): the set
          is the likeliest classes until their mass reaches the threshold, never empty
    raps  aps plus a penalty for every class beyond the second (Angelopoulos et al. 2021), scaled to [0, 1]

A threshold is the ceil((n + 1) * promise)-th smallest score of n true classes. Then a new sample *of the same
domain* has its class in the set with at least the promised probability. A new domain is another matter; the
rules differ in what they say about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unseen.calibration.histograms import Counts, Floats, coverage_at, quantile_bin

SCORES = ("lac", "aps", "raps")
DEFAULT_SCORE = "aps"
PENALTY, FREE_CLASSES = 0.05, 2
PROMISES = (0.8, 0.9, 0.95)
DEFAULT_PROMISE = 0.9


def class_scores(probabilities: Floats, kind: str) -> Floats:
    """Compute the conformal score of every class (samples x classes), between 0 and 1."""
    if kind == "lac":
        return 1 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    before = np.concatenate([np.zeros((len(ranked), 1)), np.cumsum(ranked, axis=1)[:, :-1]], axis=1)
    if kind == "raps":
        ranks = np.arange(1, ranked.shape[1] + 1)
        worst = PENALTY * max(0, ranked.shape[1] - FREE_CLASSES)
        before = (before + PENALTY * np.maximum(0, ranks - FREE_CLASSES)) / (1 + worst)
    scores = np.empty_like(before)
    np.put_along_axis(scores, order, np.clip(before, 0, 1), axis=1)
    return scores


@dataclass(frozen=True)
class Rule:
    """A way from the sources' scores to one threshold.

    promises  what it guarantees, and what it does not
    bin       the threshold's bin, from the histograms of the domains and a promise
    """

    name: str
    promises: str
    bin: Callable[[Sequence[Counts], float], int]


def pooled_bin(domains: Sequence[Counts], promise: float) -> int:
    """Return the quantile of all sources' scores together."""
    return quantile_bin(np.sum(domains, axis=0), promise)


def worst_source_bin(domains: Sequence[Counts], promise: float) -> int:
    """Return the largest of the sources' own quantiles."""
    return max(quantile_bin(each, promise) for each in domains)


def widened_bin(domains: Sequence[Counts], promise: float) -> int:
    """Return the quantile at the level that every source needed when the others calibrated for it.

    Source s needs the others' quantile at level tau_s = F_others(q_s), where q_s is its own quantile. The
    pooled quantile at the largest tau_s is used, and never less than the largest q_s.
    """
    if len(domains) < 2:
        return worst_source_bin(domains, promise)
    total = np.sum(domains, axis=0)
    level = max(coverage_at(total - own, quantile_bin(own, promise)) for own in domains)
    samples = int(total.sum())
    rank = min(int(np.ceil(samples * level - 1e-9)), samples)
    widened = int(np.searchsorted(np.cumsum(total), rank))
    return max(widened, worst_source_bin(domains, promise))


def mean_domain_bin(domains: Sequence[Counts], promise: float) -> int:
    """Return the smallest bin at which the coverage, averaged over the domains, reaches the promise.

    For scores on domains that the model had not seen: the pooled-CDF quantile of Dunn, Wasserman, Ramdas
    ("Distribution-Free Prediction Sets for Two-Layer Hierarchical Models", 2023), right on average over new
    domains as their number grows. Its finite-sample version puts weight 1/(K + 1) on a domain at infinity,
    so with fewer than promise / (1 - promise) domains it would allow every class.
    """
    mean = np.mean([np.cumsum(each) / each.sum() for each in domains], axis=0)
    return int(np.argmax(mean >= promise - 1e-12))


RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "pooled",
            "covers at least the promised fraction of samples like the sources' validation samples, pooled; "
            "says nothing about an unseen domain",
            pooled_bin,
        ),
        Rule(
            "worst-source",
            "covers at least the promised fraction on every source; on a new one with probability K/(K + 1) "
            "only if K sources and new domain were alike to the model, which trained on the sources",
            worst_source_bin,
        ),
        Rule(
            "widened",
            "as worst-source, widened to the level that every source needed when the others "
            "calibrated for it; an empirical correction without a guarantee on an unseen domain",
            widened_bin,
        ),
    )
}
DEFAULT_RULE = "widened"
UNSEEN_RULE = "unseen"
UNSEEN_PROMISES = (
    "the promised fraction on average over domains that the model did not train on; exact only as their "
    "number grows"
)


def rule_bins(
    sources: Mapping[str, Counts], promise: float, *, unseen: Mapping[str, Counts] | None = None
) -> dict[str, int]:
    """Return the threshold's bin by every rule.

    unseen  scores on domains that the model did not train on, if there are any: adds the rule `unseen`
    """
    known = [counts for counts in sources.values() if counts.sum()]
    found = {name: rule.bin(known, promise) for name, rule in RULES.items()} if known else {}
    outside = [counts for counts in (unseen or {}).values() if counts.sum()]
    return found | ({UNSEEN_RULE: mean_domain_bin(outside, promise)} if outside else {})
