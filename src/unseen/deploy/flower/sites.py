"""The connected sites: one message per site, and the answers that arrive before the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from unseen.deploy.flower.compat import NODE_UNAVAILABLE
from unseen.deploy.flower.message import SiteMessage, from_flower_record, to_flower_record
from unseen.engine.base import NoAnswer
from unseen.errors import UnseenError
from unseen.printable import printable

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

FIRST_POLL, LAST_POLL = 0.25, 2.0
"""Seconds between polls for answers: a twentieth of the time waited so far, within these limits."""
MESSAGE_TYPES = {
    "census": "query",
    "train": "train",
    "consult": "train",
    "evaluate": "evaluate",
    "judge": "evaluate",
}
Welcome = Callable[[str, dict[str, Any]], str | None]
"""Called with a new site's name and summary; returns why it cannot take part, or None."""


class Sites:
    """The sites by name; a new site is first asked for its summary (`census`).

    deadline  seconds within which a site must answer
    welcome   decides about new sites
    names     node id -> site whose key it presented; empty: the sites' own names are trusted
    """

    def __init__(
        self,
        grid: Grid,
        *,
        census: SiteMessage,
        deadline: float,
        welcome: Welcome,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.grid, self.deadline, self.welcome, self.names = grid, deadline, welcome, names or {}
        self._census = census
        self._nodes: dict[str, int] = {}
        self._notices: dict[str, str] = {}
        self.turned_away: dict[int, str] = {}

    def connected(self) -> set[str]:
        """Return the known sites that Flower reports as reachable."""
        there = set(self.grid.get_node_ids())
        return {site for site, node in self._nodes.items() if node in there}

    def greet(self) -> None:
        """Ask newly connected sites for their summaries."""
        known = {self._nodes[site] for site in self.connected()}
        new = [
            node for node in self.grid.get_node_ids() if node not in known and node not in self.turned_away
        ]
        for node, answer in self._exchange(dict.fromkeys(new, self._census), "census").items():
            if isinstance(answer, NoAnswer):
                self.turned_away[node] = answer.reason
                continue
            site = printable(answer.header.get("site", str(node)), longest=80)
            said = answer.header.get("error")
            reason = printable(said) if said else self._objection(site, node, answer.header)
            if reason:
                self.turned_away[node] = f"{site}: {reason}"
            else:
                self._nodes[site] = node

    def _objection(self, site: str, node: int, summary: dict[str, Any]) -> str | None:
        if self.names and self.names.get(str(node)) != site:
            return f"uses this name, but its key is registered for {self.names.get(str(node), 'no site')}"
        if site in self.connected():
            return "another site of this name is already connected"
        return self.welcome(site, summary)

    def wait_for(self, wanted: Iterable[str], *, at_least: int) -> set[str]:
        """Wait until all wanted sites are connected, or until the deadline if `at_least` of them are."""
        wanted, until = set(wanted), time.monotonic() + self.deadline
        while True:
            here = self.connected() & wanted
            if here == wanted:
                return here
            self.greet()
            here = self.connected() & wanted
            if len(here) >= at_least:
                return here
            if time.monotonic() > until:
                missing = ", ".join(sorted(wanted - here))
                raise UnseenError(
                    f"{len(here)} of {len(wanted)} sites are connected, at least {at_least} are needed; "
                    f"waited {self.deadline:g} s for {missing}{self.complaints()}"
                )
            time.sleep(1.0)

    def complaints(self) -> str:
        """Describe why sites were refused, for error messages."""
        return "".join(f"; refused: {reason}" for reason in self.turned_away.values())

    def ask(self, what: str, messages: Mapping[str, SiteMessage]) -> dict[str, SiteMessage | NoAnswer]:
        """Send each site its message and collect the answers until the deadline."""
        if set(messages) - self.connected():
            self.greet()
        here = self.connected()
        for site in here & self._notices.keys() & messages.keys():
            messages[site].header["notice"] = self._notices.pop(site)
        answers: dict[str, SiteMessage | NoAnswer] = {
            site: NoAnswer("not connected") for site in messages if site not in here
        }
        found = self._exchange({self._nodes[site]: messages[site] for site in messages if site in here}, what)
        for site in messages:
            if site in here:
                answer = found[self._nodes[site]]
                error = None if isinstance(answer, NoAnswer) else answer.header.get("error")
                answers[site] = NoAnswer(printable(error)) if error else answer
        return answers

    def tell(self, site: str, notice: str) -> None:
        """Attach a notice to the next message to a site."""
        self._notices[site] = notice

    def _exchange(self, requests: Mapping[int, SiteMessage], what: str) -> dict[int, SiteMessage | NoAnswer]:
        from flwr.app import Message

        if not requests:
            return {}
        nodes = list(requests)
        messages = []
        for node in nodes:
            header = {**requests[node].header, "ask": what}
            content = to_flower_record(SiteMessage(header, requests[node].arrays))
            messages.append(Message(content, node, MESSAGE_TYPES[what], ttl=self.deadline + 60.0))
        waiting = dict(zip(self.grid.push_messages(messages), nodes, strict=True))
        answers: dict[int, SiteMessage | NoAnswer] = {}
        begun = time.monotonic()
        while waiting and time.monotonic() < begun + self.deadline:
            for reply in self.grid.pull_messages(list(waiting)):
                number = reply.metadata.reply_to_message_id
                if number in waiting:
                    answers[waiting.pop(number)] = _read(reply)
            if waiting:
                waited = time.monotonic() - begun
                time.sleep(min(max(waited / 20, FIRST_POLL), LAST_POLL))
        late = NoAnswer(f"no answer within {self.deadline:g} s")
        return {node: answers.get(node, late) for node in nodes}


def _read(reply: Message) -> SiteMessage | NoAnswer:
    if reply.has_error():
        if reply.error.code == NODE_UNAVAILABLE:
            return NoAnswer("disconnected while it was working")
        return NoAnswer(f"failed at the site: {printable(reply.error.reason)}")
    try:
        return from_flower_record(reply.content)
    except UnseenError as error:
        return NoAnswer(str(error))
