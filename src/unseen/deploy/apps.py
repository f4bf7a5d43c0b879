"""The Flower app: Flower loads `server_app` at the coordinator and `client_app` at each site.

The app's configuration carries the job (see `app_folder.py`); a site's name, data and home come from its own
SuperNode (`--node-config`), never from the coordinator.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unseen.deploy.flower.compat import APP_ERROR, exit_with_parent, require_flower
from unseen.errors import UnseenError
from unseen.printable import printable

if TYPE_CHECKING:
    from unseen.deploy.site.site import Site

log = logging.getLogger("unseen.site")
require_flower()
server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def coordinate_job(grid: Grid, context: Context) -> None:
    """Run the job in the app's configuration."""
    from unseen.config import RunConfig
    from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
    from unseen.deploy.coordinator.events import EventLog
    from unseen.deploy.coordinator.judge_federation import JudgeRequest, coordinate_judging

    exit_with_parent()
    settings = context.run_config
    events = EventLog(Path(str(settings["notebook"])) if settings.get("notebook") else None)
    terms = RoundPolicy(
        deadline=float(str(settings["round-deadline"])), min_sites=int(str(settings["min-sites"]))
    )
    out, names = Path(str(settings["out"])).expanduser(), json.loads(str(settings.get("names", "{}")))
    try:
        if "judge" in settings:
            asked = JudgeRequest.from_json(str(settings["judge"]))
            coordinate_judging(grid, asked, out=out, terms=terms, callbacks=events, names=names)
        else:
            coordinate(
                grid,
                RunConfig.from_mapping(json.loads(str(settings["job"]))),
                out=out,
                resume=bool(settings["resume"]),
                terms=terms,
                callbacks=events,
                names=names,
            )
    except Exception as error:
        events.ended(error)
        raise
    events.ended()


def answer_message(message: Message, context: Context) -> Message:
    """Answer a message at a site; what is sent is first written to the site's ledger."""
    from unseen.deploy.flower.message import SiteMessage, from_flower_record, to_flower_record
    from unseen.deploy.site.ledger import append_entry

    exit_with_parent()
    site = _site(context)
    question = SiteMessage()
    try:
        question = from_flower_record(message.content)
    except Exception as error:
        said = f"a message could not be read ({printable(str(error))})"
        log.error("%s", said)
        answer = SiteMessage({"site": site.name, "error": said})
    else:
        answer = site.answer(question)
    append_entry(site.home, question, answer, key=site.key)
    return Message(to_flower_record(answer), reply_to=message)


def refuse_message(message: Message, context: Context, reason: str) -> Message:
    """Refuse a message; the site's log and ledger say why."""
    from unseen.deploy.site.ledger import append_refusal

    exit_with_parent()
    site = _site(context)
    log.error("%s", reason)
    append_refusal(site.home, "foreign app", reason, key=site.key)
    return Message(Error(APP_ERROR, reason), reply_to=message)


def _site(context: Context) -> Site:
    from unseen.deploy.site.site import Site

    node = context.node_config
    for key in ("site", "data", "home"):
        if key not in node:
            raise UnseenError(f"this SuperNode's --node-config lacks {key!r}; start it with `unseen join`")
    return Site(str(node["site"]), str(node["data"]), Path(str(node["home"])))


client_app.query()(answer_message)
client_app.train()(answer_message)
client_app.evaluate()(answer_message)
