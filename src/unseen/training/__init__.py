"""One client's local work: the loop, the optimiser, what it may see and what it may send."""

from unseen.training.client import ClientWork, DivergedError, Update, reason_to_reject
from unseen.training.local_config import LocalTrainingConfig, Optimiser
from unseen.training.optimizers import effective_steps, require_sums_of_gradients
from unseen.training.preprocessing import (
    PRECISIONS,
    Preprocessor,
    batch_positions,
    check_precision,
    computing_in,
)

__all__ = [
    "PRECISIONS",
    "ClientWork",
    "DivergedError",
    "LocalTrainingConfig",
    "Optimiser",
    "Preprocessor",
    "Update",
    "batch_positions",
    "check_precision",
    "computing_in",
    "effective_steps",
    "reason_to_reject",
    "require_sums_of_gradients",
]
