"""The clients whose sum a round opens: at least three, and never a second list for the same round.

The difference of two sums of one round is the update of whoever is in one of them only. So every client notes
the first list that it helps to open and refuses any other. A round that is repeated after a crash is opened
over the same clients as before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from unseen.errors import UnseenError
from unseen.privacy.context import ClientContext, ServerContext

FEWEST = 3
"""With two clients, each could subtract its own part from the sum."""
REOPENED = "sum was opened before"
"""Words in the refusal of a client that has helped to open this round's sum over other clients."""
OPENING = "unmask"
"""Purpose under which journals record the list."""


def admit_survivors(names: Sequence[str], context: ClientContext) -> None:
    """Record over which clients this client helps to open the round's sum; refuse any others."""
    digest = hashlib.sha256("\x1f".join(sorted(names)).encode()).digest()
    try:
        context.journal.admit(client=context.client, round=context.round, purpose=OPENING, digest=digest)
    except UnseenError:
        raise UnseenError(
            f"round {context.round}'s {REOPENED}, over other clients than {', '.join(names)}: "
            "the difference of two sums would show single updates. Repeat it with exactly the clients of "
            f"the first time (wait for the one that is missing), or {context.journal.way_out}"
        ) from None


def former_survivors(names: Iterable[str], context: ServerContext) -> list[str]:
    """Name the clients over which this round was opened before a crash, if the others came back since.

    Those clients refuse any other sum, and open it again over themselves.
    """
    asked = list(names)
    former = [name for name in asked if REOPENED in context.refusals.get(name, "")]
    if len(former) in (0, len(asked)):
        return []
    for name in asked:
        if name not in former:
            context.fault(name, "is left out: the round was opened without it before a crash")
    return former


def list_refusals(context: ServerContext) -> str:
    """List who refused in this round and why, each reason once."""
    reasons = dict.fromkeys(context.refusals.values())
    return "; ".join(
        f"{', '.join(name for name, said in context.refusals.items() if said == reason)}: {reason}"
        for reason in reasons
    )
