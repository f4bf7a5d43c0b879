"""The Flower app: Flower loads `server_app` at the coordinator and `client_app` at each site.

The app's configuration carries the job (see `app_folder.py`); a site's name, data and home come from its own
SuperNode (`--node-config`), never from the coordinator.
"""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from unseen.deploy.flower.compat import exit_with_parent, require_flower
from unseen.errors import UnseenError

require_flower()
server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def coordinate_job(grid: Grid, context: Context) -> None:
    """Run the job in the app's configuration."""
    from unseen.config import RunConfig
    from unseen.deploy.coordinator import RoundPolicy, coordinate
    from unseen.deploy.events import EventLog

    exit_with_parent()
    settings = context.run_config
    events = EventLog(Path(str(settings["notebook"])) if settings.get("notebook") else None)
    try:
        coordinate(
            grid,
            RunConfig.from_mapping(json.loads(str(settings["job"]))),
            out=Path(str(settings["out"])).expanduser(),
            resume=bool(settings["resume"]),
            terms=RoundPolicy(
                deadline=float(str(settings["round-deadline"])), min_sites=int(str(settings["min-sites"]))
            ),
            callbacks=events,
            names=json.loads(str(settings.get("names", "{}"))),
        )
    except Exception as error:
        events.ended(error)
        raise
    events.ended()


def _answer(message: Message, context: Context) -> Message:
    from unseen.deploy.flower.message import from_flower_record, to_flower_record
    from unseen.deploy.ledger import append_entry
    from unseen.deploy.site import Site

    exit_with_parent()
    node = context.node_config
    for key in ("site", "data", "home"):
        if key not in node:
            raise UnseenError(f"this SuperNode's --node-config lacks {key!r}; start it with `unseen join`")
    site = Site(str(node["site"]), str(node["data"]), Path(str(node["home"])))
    question = from_flower_record(message.content)
    answer = site.answer(question)
    append_entry(site.home, question, answer)
    return Message(to_flower_record(answer), reply_to=message)


client_app.query()(_answer)
client_app.train()(_answer)
client_app.evaluate()(_answer)
