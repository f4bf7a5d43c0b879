"""Metrics, evaluation and model selection."""

from unseen.evaluation.evaluate import EVALUATION_BATCH, evaluate, predict_batches
from unseen.evaluation.groups import GroupedTally, group_metrics, group_scores
from unseen.evaluation.selection import SELECTION_RULES, VALIDATION_DOMAIN, Selection, mean_metric, select
from unseen.evaluation.tally import (
    PRIMARY,
    ClassificationTally,
    Metrics,
    RegressionTally,
    Tally,
    make_tally,
)

__all__ = [
    "EVALUATION_BATCH",
    "PRIMARY",
    "SELECTION_RULES",
    "VALIDATION_DOMAIN",
    "ClassificationTally",
    "GroupedTally",
    "Metrics",
    "RegressionTally",
    "Selection",
    "Tally",
    "evaluate",
    "group_metrics",
    "group_scores",
    "make_tally",
    "mean_metric",
    "predict_batches",
    "select",
]
