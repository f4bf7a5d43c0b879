"""Calibrated probabilities and conformal sets from sums that clients send."""

from unseen.calibration.artifact import Calibration
from unseen.calibration.conformal import RULES, SCORES, class_scores
from unseen.calibration.histograms import ERROR_EDGES, SCORE_EDGES, count_bins, coverage_at, quantile_bin
from unseen.calibration.measurement import Measurement, Sums
from unseen.calibration.scaling import Scaling
from unseen.calibration.site_reference import SiteReference

__all__ = [
    "ERROR_EDGES",
    "RULES",
    "SCORES",
    "SCORE_EDGES",
    "Calibration",
    "Measurement",
    "Scaling",
    "SiteReference",
    "Sums",
    "class_scores",
    "count_bins",
    "coverage_at",
    "quantile_bin",
]
