"""The hardware a process may use: its CPU cores and the device that torch computes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from unseen.errors import UsageError

if TYPE_CHECKING:
    import torch


def available_cores() -> int:
    """Count the CPU cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_device(name: str) -> torch.device:
    """Resolve `auto` to the best available device; refuse a device that is not available."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise UsageError(f"device {name!r} is not available here; use auto or cpu") from None
    return device
