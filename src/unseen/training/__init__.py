"""Local training of one client: loop, optimizers, schedules, preprocessing, and the update it sends."""

from unseen.training.client import ClientWork, DivergedError, Update, augmented_inside, reason_to_reject
from unseen.training.feature_augment import check_feature_augmentation
from unseen.training.gradient_rules import GRADIENT_RULES
from unseen.training.local_config import LocalTrainingConfig
from unseen.training.optimizers import OPTIMIZERS, effective_steps, require_sums_of_gradients
from unseen.training.precision import PRECISIONS, check_precision, choose_precision
from unseen.training.preprocessing import Preprocessor, batch_positions
from unseen.training.schedules import SCHEDULES

__all__ = [
    "GRADIENT_RULES",
    "OPTIMIZERS",
    "PRECISIONS",
    "SCHEDULES",
    "ClientWork",
    "DivergedError",
    "LocalTrainingConfig",
    "Preprocessor",
    "Update",
    "augmented_inside",
    "batch_positions",
    "check_feature_augmentation",
    "check_precision",
    "choose_precision",
    "effective_steps",
    "reason_to_reject",
    "require_sums_of_gradients",
]
