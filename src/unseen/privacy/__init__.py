"""Privacy protections (differential privacy, secure aggregation, encryption) and the disclosure log.

Names load on first use: the process that computes on ciphertexts imports `unseen.privacy.he` without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unseen.privacy.base import (
        PROTECTIONS,
        Protection,
        answer_message,
        make_protection,
        protection_type,
        register_protection,
        seal_update,
        withhold_update,
    )
    from unseen.privacy.context import (
        ClientContext,
        Message,
        MethodTraits,
        PlannedRun,
        ReceivedUpdate,
        RoundUpdates,
        ServerContext,
        stack_updates,
    )
    from unseen.privacy.disclosure import (
        DisclosureEntry,
        DisclosureLog,
        require_declared,
        sum_bytes_by_sender,
        sum_disclosures,
        unprotected_entries,
    )

__all__ = [
    "PROTECTIONS",
    "ClientContext",
    "DisclosureEntry",
    "DisclosureLog",
    "Message",
    "MethodTraits",
    "PlannedRun",
    "Protection",
    "ReceivedUpdate",
    "RoundUpdates",
    "ServerContext",
    "answer_message",
    "make_protection",
    "protection_type",
    "register_protection",
    "require_declared",
    "seal_update",
    "stack_updates",
    "sum_bytes_by_sender",
    "sum_disclosures",
    "unprotected_entries",
    "withhold_update",
]


def __getattr__(name: str) -> Any:
    """Import a name of `__all__` from the module that defines it."""
    if name in __all__:
        for module in ("base", "context", "disclosure"):
            found = vars(import_module(f"{__name__}.{module}"))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
