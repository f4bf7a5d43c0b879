"""One client's local work: the loop, the optimiser, what it may see and what it may send."""

from unseen.training.client import ClientWork, DivergedError, Update, reason_to_reject
from unseen.training.effective_steps import effective_steps, require_sums_of_gradients
from unseen.training.local_config import Optimiser, TrainingPlan
from unseen.training.precision import PRECISIONS, check_precision, computing_in
from unseen.training.preprocessing import Preparation, batch_positions

__all__ = [
    "PRECISIONS",
    "ClientWork",
    "DivergedError",
    "Optimiser",
    "Preparation",
    "TrainingPlan",
    "Update",
    "batch_positions",
    "check_precision",
    "computing_in",
    "effective_steps",
    "reason_to_reject",
    "require_sums_of_gradients",
]
