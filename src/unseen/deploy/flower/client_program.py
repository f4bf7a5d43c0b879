"""The program that a site runs for every message, in place of Flower's: it runs Unseen's own client app only.

A Flower job is code. Here nothing of it is unpacked, installed or imported: an app bundle is only compared
with the one that Unseen writes. If it is that one, the installed `unseen.deploy.apps` answers; anything else
gets a refusal, which the site's log and ledger record.

    python -m unseen.deploy.flower.client_program PROGRAM ...    takes the arguments of `flwr-clientapp`
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.deploy.flower.compat import CLIENT_PROGRAM, run_clientapp_with
from unseen.printable import quote

if TYPE_CHECKING:
    from flwr.app import Context, Message

App = Callable[["Message", "Context"], "Message"]


def run_client_program() -> None:
    """Answer one message; the first word of the command line is the program that Flower asked for."""
    program = Path(sys.argv[0]).name
    run_clientapp_with(lambda name, bundle: choose_app(program, name, bundle))


def choose_app(program: str, name: str, bundle: bytes) -> App:
    """Return Unseen's client app, or one that refuses.

    program  the program that Flower asked for
    name     of the app, as the coordinator says
    bundle   the app bundle (FAB), which is not unpacked
    """
    from unseen.deploy.apps import answer_message, refuse_message
    from unseen.deploy.flower.app_folder import reason_foreign

    reason = reason_foreign(bundle)
    if program != CLIENT_PROGRAM:
        reason = f"it asks for the program {program}"
    if not reason:
        return answer_message
    said = f"the Flower app {quote(name)} is refused, this site runs Unseen's own only: {reason}"
    return lambda message, context: refuse_message(message, context, said)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    run_client_program()
