"""One client's local work: the loop, the optimiser, what it may see and what it may send."""

from unseen.training.batches import Preparation, batch_positions, samples_in_epoch
from unseen.training.client import ClientWork, Diverged, Update, reason_to_reject
from unseen.training.plan import Optimiser, TrainingPlan

__all__ = [
    "ClientWork",
    "Diverged",
    "Optimiser",
    "Preparation",
    "TrainingPlan",
    "Update",
    "batch_positions",
    "reason_to_reject",
    "samples_in_epoch",
]
