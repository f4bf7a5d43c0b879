"""The site's home folder, and a loop that keeps its SuperNode connected and reports its activity."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unseen.deploy.flower.compat import CONNECTED_LOG, REFUSED_LOG
from unseen.deploy.flower.processes import Process, start_prefork, start_supernode, stop_process
from unseen.deploy.identity.invitation import Invitation
from unseen.deploy.identity.key_rotation import finish_rotation
from unseen.deploy.identity.keys import SiteKey, fingerprint, site_key
from unseen.deploy.identity.tls import PUBLIC, write_new
from unseen.deploy.site.approvals import Approval, Approvals
from unseen.deploy.site.ledger import Ledger, describe_entry
from unseen.errors import UnseenError, UsageError

SHORTEST_PAUSE, LONGEST_PAUSE = 3.0, 30.0
"""Seconds between two connection attempts; doubled after each failure."""
LOOK_SECONDS = 0.5
CERTIFICATE_EXPIRED = 10
"""OpenSSL's code X509_V_ERR_CERT_HAS_EXPIRED."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class SiteHome:
    """A site's home folder: its key, the coordinator's CA, its log, its client state."""

    path: Path
    invitation: Invitation
    key: SiteKey

    @property
    def ca(self) -> Path:
        """CA certificate of the invitation."""
        return self.path / "ca.crt"

    @property
    def log(self) -> Path:
        """Log file of the SuperNode."""
        return self.path / "supernode.log"

    @property
    def been_inside(self) -> Path:
        """Marker file: exists once the coordinator has admitted this site."""
        return self.path / "connected"


def open_site(path: Path, invitation: Invitation) -> SiteHome:
    """Create a site's home, or open an existing one; the CA that it trusts never changes."""
    if not (path / "ca.crt").exists():
        invitation.require_fresh()
    finish_rotation(path, invitation.site)
    home = SiteHome(path, invitation, site_key(path, invitation.site))
    if not home.ca.exists():
        write_new(home.ca, invitation.ca.encode(), mode=PUBLIC)
    elif home.ca.read_text(encoding="utf-8") != invitation.ca:
        raise UsageError(
            f"{path} belongs to another coordinator (its {home.ca.name} differs from the invitation's): "
            "choose another --home, or move that file away if the coordinator was really recreated"
        )
    return home


def stay_connected(home: SiteHome, data: str, say: Say) -> None:
    """Keep the site's SuperNode running until the process is interrupted."""
    pause, last = SHORTEST_PAUSE, ""
    with Connection(home, data, say) as connection:
        while True:
            reason = reason_unreachable(home) or connection.run_once()
            if reason is None:
                last = ""
                say("disconnected; connecting again")
            elif reason != last:
                say(f"{reason}; trying again until it works (Ctrl-C stops)")
                last = reason
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE) if reason else SHORTEST_PAUSE


def reason_unreachable(home: SiteHome) -> str | None:
    """Try a TLS connection: return None or the reason; raise if the CA did not sign the certificate."""
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
        if error.verify_code == CERTIFICATE_EXPIRED:
            return f"the certificate of {address} has expired: there they run `unseen up --renew`"
        raise UnseenError(
            f"the server at {address} is not the coordinator that invited this site: its certificate is "
            f"not from the invitation's CA ({error.verify_message}); nothing was sent"
        ) from error
    except ssl.SSLError as error:
        return f"{address} does not use TLS ({error.reason}); is it really the coordinator?"
    except OSError as error:
        return f"the coordinator at {address} cannot be reached ({error.strerror or error})"


class Connection:
    """The SuperNode and its prefork server, which starts once the coordinator has admitted the site."""

    def __init__(self, home: SiteHome, data: str, say: Say) -> None:
        self.home, self.data, self.say = home, data, say
        self.ledger, self._approvals = Ledger(home.path), Approvals(home.path)
        self._told: set[Approval] = set()
        self._warm_folder = home.path / "warm"
        self._warm: Process | None = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        if self._warm is not None:
            stop_process(self._warm)

    def run_once(self) -> str | None:
        """Run the SuperNode until it ends; return why it was refused, or None if it was admitted."""
        home = self.home
        with home.log.open("a", encoding="utf-8") as log:
            start = log.tell()
            process = start_supernode(
                home.path,
                site=home.invitation.site,
                data=self.data,
                superlink=home.invitation.address,
                ca=home.ca,
                key=home.key.private,
                warm=self._warm_folder,
                log=log,
            )
        connected = False
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
                if not connected:
                    said = _log_from(home, start)
                    connected = CONNECTED_LOG.search(said) is not None
                    if connected:
                        self._let_in()
                    elif REFUSED_LOG in said:
                        break
                for words in (words for line in self.ledger.new() for words in describe_entry(line)):
                    self.say(words)
                self._tell_waiting()
        finally:
            stop_process(process)
        return None if connected else _reason(home, _log_from(home, start))

    def _tell_waiting(self) -> None:
        """Say once for every job that it waits for a person."""
        waiting = {one for one in self._approvals.all() if one.state == "waiting"}
        for one in sorted(waiting - self._told, key=lambda one: one.run):
            self.say(
                f"job {one.run} waits for a person: {one.summary}\n"
                f"    unseen approve {one.run} --home {self.home.path}    (or with --deny)"
            )
        self._told = waiting

    def _let_in(self) -> None:
        self.home.been_inside.touch()
        if self._warm is None or self._warm.poll() is not None:
            with self.home.log.open("a", encoding="utf-8") as log:
                self._warm = start_prefork(self._warm_folder, log=log)
        self.say(f"connected to {self.home.invitation.address}; waiting for work")


def _log_from(home: SiteHome, start: int) -> str:
    with home.log.open(encoding="utf-8", errors="replace") as file:
        file.seek(start)
        return file.read(20_000)


def _reason(home: SiteHome, log: str) -> str:
    if REFUSED_LOG in log and home.been_inside.exists():
        return (
            "the coordinator is still waiting for this site's last connection to end (up to a minute), or it "
            f"does not accept this key any more ({fingerprint(home.key.line)}: expired or revoked?)"
        )
    if REFUSED_LOG in log:
        public, site = home.key.public, home.invitation.site
        return (
            f"the coordinator does not know this site's key yet: send it {public}, where they run\n"
            f"    unseen accept {site} {public.name}\n"
            f"  (fingerprint {fingerprint(home.key.line)})"
        )
    errors = [line for line in log.splitlines() if "rror" in line or "Failed" in line]
    return f"the connection ended ({(errors or ['no reason given'])[-1].strip()}); see {home.log}"
