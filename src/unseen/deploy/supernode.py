"""A site at work: its SuperNode, started again whenever it ends, and what it does told in plain words."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from unseen.deploy.certificates import PUBLIC, write_new
from unseen.deploy.invitation import Invitation
from unseen.deploy.keys import SiteKey, fingerprint, site_key
from unseen.deploy.ledger import Ledger
from unseen.deploy.processes import end, start_supernode
from unseen.deploy.wording import told
from unseen.errors import UnseenError, UsageError

SHORTEST_PAUSE, LONGEST_PAUSE = 3.0, 30.0
"""Seconds between two attempts; after a failure twice as many as before."""
LOOK_SECONDS = 0.5
CONNECTED = re.compile(r"SuperNode ID: \d+")
REFUSED = "[code: 2004]"
Say = Callable[[str], None]


@dataclass(frozen=True)
class SiteHome:
    """The folder of a site: its key, the coordinator's authority, its log, its clients' memory."""

    path: Path
    invitation: Invitation
    key: SiteKey

    @property
    def ca(self) -> Path:
        """The authority of the invitation."""
        return self.path / "ca.crt"

    @property
    def log(self) -> Path:
        """What Flower says."""
        return self.path / "supernode.log"

    @property
    def been_inside(self) -> Path:
        """Is there once the coordinator has let this site in."""
        return self.path / "connected"


def open_site(path: Path, invitation: Invitation) -> SiteHome:
    """Make a site's home, or continue one; its key stays, and so does the authority it trusts."""
    home = SiteHome(path, invitation, site_key(path, invitation.site))
    if not home.ca.exists():
        write_new(home.ca, invitation.ca.encode(), mode=PUBLIC)
    elif home.ca.read_text(encoding="utf-8") != invitation.ca:
        raise UsageError(
            f"{path} belongs to another coordinator (its {home.ca.name} differs from the invitation's): "
            "name another --home, or move that file away if the coordinator was really made anew"
        )
    return home


def stay_connected(home: SiteHome, data: str, say: Say) -> None:
    """Keep the site's SuperNode running until the process is interrupted."""
    ledger, pause, last = Ledger(home.path), SHORTEST_PAUSE, ""
    while True:
        reason = reason_unreachable(home) or _one_connection(home, data, ledger, say)
        if reason is None:
            pause, last = SHORTEST_PAUSE, ""
            say("disconnected; connecting again")
        elif reason != last:
            say(f"{reason}; trying again until it works (Ctrl-C stops)")
            last = reason
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE) if reason else SHORTEST_PAUSE


def reason_unreachable(home: SiteHome) -> str | None:
    """Try the coordinator's door: None if it opens; an impostor's door ends everything."""
    address = home.invitation.address
    host, _, port = address.rpartition(":")
    trust = ssl.create_default_context(cafile=home.ca)
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0) as line,
            trust.wrap_socket(line, server_hostname=host.strip("[]")),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        raise UnseenError(
            f"whoever answers at {address} is not the coordinator that invited this site: its certificate is "
            f"not from the invitation's authority ({error.verify_message}); nothing was sent"
        ) from error
    except ssl.SSLError as error:
        return f"{address} does not speak TLS ({error.reason}); is it really the coordinator?"
    except OSError as error:
        return f"the coordinator at {address} cannot be reached ({error.strerror or error})"


def _one_connection(home: SiteHome, data: str, ledger: Ledger, say: Say) -> str | None:
    """Run the SuperNode to its end; return why it was not let in, or None if it was."""
    with home.log.open("a", encoding="utf-8") as log:
        start = log.tell()
        process = start_supernode(
            home.path,
            site=home.invitation.site,
            data=data,
            superlink=home.invitation.address,
            ca=home.ca,
            key=home.key.private,
            log=log,
        )
    connected = False
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
            if not connected and CONNECTED.search(_log_from(home, start)):
                connected = True
                home.been_inside.touch()
                say(f"connected to {home.invitation.address}; waiting for work")
            for line in ledger.new():
                for words in told(line):
                    say(words)
            if not connected and REFUSED in _log_from(home, start):
                break
    finally:
        end(process)
    return None if connected else _reason(home, _log_from(home, start))


def _log_from(home: SiteHome, start: int) -> str:
    with home.log.open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        return file.read(20_000)


def _reason(home: SiteHome, log: str) -> str:
    if REFUSED in log and home.been_inside.exists():
        return "the coordinator still waits for this site's last connection to end (up to a minute)"
    if REFUSED in log:
        public, site = home.key.public, home.invitation.site
        return (
            f"the coordinator does not know this site's key yet: send it {public}, there they run\n"
            f"    unseen invite {site} --key {public.name}\n"
            f"  (fingerprint {fingerprint(home.key.line)})"
        )
    errors = [line for line in log.splitlines() if "rror" in line or "Failed" in line]
    return f"the connection ended ({(errors or ['no reason given'])[-1].strip()}); see {home.log}"
