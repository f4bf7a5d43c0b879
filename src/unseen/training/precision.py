"""In which precision networks compute; weights, gradients and sums stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, get_args

import torch

from unseen.errors import UsageError, unknown_name

Precision = Literal["float32", "bfloat16"]
PRECISIONS = get_args(Precision)


def computing_in(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Let forward passes compute in `precision`: bfloat16 for products, float32 where it would hurt."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse what is unknown, and bfloat16 where it only costs time."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "bfloat16" and device.type == "cpu":
        raise UsageError(
            "--precision bfloat16 is for GPUs: processors compute it more slowly than float32 or, in some "
            "virtual machines, not at all; leave it out or choose another --device"
        )
