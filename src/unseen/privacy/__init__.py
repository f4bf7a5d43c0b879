"""Noise, encryption, and the record of what left a client."""

from unseen.privacy.base import (
    PROTECTIONS,
    Protection,
    checked_answer,
    make_protection,
    register_protection,
    sealed_update,
    withheld,
)
from unseen.privacy.dp_clients import DPClients
from unseen.privacy.dp_samples import DPSamples
from unseen.privacy.encrypted import Encrypted
from unseen.privacy.facts import (
    ClientSide,
    Merge,
    Message,
    MethodFacts,
    Opened,
    PlannedRun,
    Received,
    ServerSide,
    gathered,
)
from unseen.privacy.record import Leaving, Left, plain_lines, require_declared
from unseen.privacy.secure_sum import SecureSum
from unseen.privacy.totals import by_sender, totals

__all__ = [
    "PROTECTIONS",
    "ClientSide",
    "DPClients",
    "DPSamples",
    "Encrypted",
    "Leaving",
    "Left",
    "Merge",
    "Message",
    "MethodFacts",
    "Opened",
    "PlannedRun",
    "Protection",
    "Received",
    "SecureSum",
    "ServerSide",
    "by_sender",
    "checked_answer",
    "gathered",
    "make_protection",
    "plain_lines",
    "register_protection",
    "require_declared",
    "sealed_update",
    "totals",
    "withheld",
]
