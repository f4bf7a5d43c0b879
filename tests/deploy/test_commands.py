"""A federation made with our commands, on loopback: who is turned away, and a tour to a trained model."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from real_commands import PATIENCE, Commands, processes_that_mention
from tiny_sites import SITES, TINY, make_images, tiny_job, write_policy

from unseen.deploy.coordinator.coordinator_home import CoordinatorHome
from unseen.deploy.flower.access_control import gate_token
from unseen.deploy.flower.processes import Process, free_port, start_supernode, stop_process
from unseen.deploy.identity.invitation import Invitation
from unseen.deploy.identity.keys import site_key
from unseen.deploy.identity.members import Members, known_nodes
from unseen.deploy.identity.tls import make_certificates
from unseen.deploy.site.site_home import open_site, reason_unreachable
from unseen.errors import UnseenError
from unseen.runner.run import run
from unseen.runs.checkpoint import Checkpoint
from unseen.runs.folder import RunFolder

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """A coordinator that `unseen up` started, and images and keys for its sites."""
    commands = Commands(tmp_path_factory.mktemp("federation"))
    folder = commands.folder
    make_images(folder / "images")
    port = str(free_port())
    commands.start("up", "up", "--port", port)
    try:
        commands.wait_for("up", "Starting the coordinator")
        for site in SITES:
            site_key(folder / f"{site}-home", site)
            write_policy(folder / f"{site}-home", TINY)
        commands.wait_for("up", "Ctrl-C stops")
        yield commands
    finally:
        commands.stop_all()


@pytest.fixture(scope="module")
def strangers(federation: Commands) -> Iterator[dict[str, tuple[Process, Path]]]:
    """SuperNodes that must not be let in, all started at once."""
    folder = federation.folder
    home = CoordinatorHome.load(folder / "federation")
    other = make_certificates(folder / "other-authority", ["127.0.0.1"])
    found: dict[str, tuple[Process, Path]] = {}
    try:
        for name, ca in (
            ("no-registration", home.here.ca),
            ("other-authority", other.ca),
            ("plain-http", None),
        ):
            place, log = folder / f"stranger-{name}", folder / f"stranger-{name}.log"
            key = site_key(place, "stranger").private if ca else None
            with log.open("w", encoding="utf-8") as file:
                process = start_supernode(
                    place,
                    site="stranger",
                    data="",
                    superlink=home.here.address,
                    ca=ca,
                    key=key,
                    warm=folder / "no-warm",
                    log=file,
                )
            found[name] = (process, log)
        yield found
    finally:
        for process, _ in found.values():
            stop_process(process, kill=True)


def wait_for_words(log: Path, words: str) -> None:
    until = time.monotonic() + PATIENCE
    while words not in log.read_text(encoding="utf-8"):
        assert time.monotonic() < until, f"{words!r} is not in {log.read_text(encoding='utf-8')}"
        time.sleep(0.2)


def turned_away(log: Path) -> bool:
    return "SuperNode ID" not in log.read_text(encoding="utf-8")


def test_a_site_with_an_unregistered_key_is_turned_away(strangers: dict[str, tuple[Process, Path]]) -> None:
    _, log = strangers["no-registration"]
    wait_for_words(log, "Failed to activate SuperNode")
    assert turned_away(log)


def test_a_certificate_of_another_authority_is_turned_away(
    strangers: dict[str, tuple[Process, Path]], federation: Commands
) -> None:
    _, log = strangers["other-authority"]
    wait_for_words(log, "CERTIFICATE_VERIFY_FAILED")
    assert turned_away(log)
    home = CoordinatorHome.load(federation.folder / "federation")
    forged = make_certificates(federation.folder / "other-authority", ["127.0.0.1"])
    site = open_site(federation.folder / "misled-home", Invitation.issue("misled", home.address, forged))
    with pytest.raises(UnseenError, match="is not the coordinator that invited this site"):
        reason_unreachable(site)


def test_plain_http_is_turned_away(strangers: dict[str, tuple[Process, Path]], federation: Commands) -> None:
    _, log = strangers["plain-http"]
    home = CoordinatorHome.load(federation.folder / "federation")
    connection = HTTPConnection("127.0.0.1", home.port, timeout=30)
    with pytest.raises((HTTPException, ConnectionError)):
        connection.request("GET", "/health")
        connection.getresponse()
    wait_for_words(log, "Connection attempt failed")
    assert turned_away(log)


def test_jobs_and_keys_are_not_taken_from_the_network(federation: Commands) -> None:
    home = CoordinatorHome.load(federation.folder / "federation")
    trust = ssl.create_default_context(cafile=home.here.ca)

    def status(path: str, **headers: str) -> int:
        request = Request(f"https://{home.here.address}{path}", data=b"", headers=headers, method="POST")
        try:
            return int(urlopen(request, context=trust, timeout=30).status)
        except HTTPError as error:
            return error.code

    token = {"X-Unseen-Token": gate_token(home.path)}
    outside = {"X-Forwarded-For": "203.0.113.9", **token}
    for path in ("start-run", "register-node", "list-nodes"):
        assert status(f"/v1/control/{path}", **outside) == 403
        assert status(f"/v1/control/{path}") == 403
        assert status(f"/v1/control/{path}", **token) != 403
    assert status("/v1/fleet/pull-messages", **outside) != 403


def test_a_tour_from_keys_to_a_trained_model(federation: Commands) -> None:
    folder = federation.folder
    for site in SITES:
        assert federation.run("invite", site).returncode == 0
    federation.start("a", "join", "a.invitation", "--data", "images/a")
    federation.wait_for("a", "does not know this site's key yet")
    for site in SITES:
        done = federation.run("accept", site, f"{site}-home/{site}.pub")
        assert "is admitted from now on" in done.stderr, done.stderr
    for site in SITES[1:]:
        federation.start(site, "join", f"{site}.invitation", "--data", f"images/{site}")
    for site in SITES:
        federation.wait_for(site, "waiting for work")

    job = tiny_job(folder / "images", rounds=2, evaluate_every=2)
    job.save(folder / "job.toml")
    words = ("--engine", "flower", "--coordinator", "federation", "--min-sites", "3", "--out", "there")
    done = federation.run("train", "job.toml", *words)
    assert done.returncode == 0, done.stderr
    run(job, out=folder / "here")
    for name in ("model.safetensors", "report.html", "records.jsonl", "result.json"):
        assert (folder / "there" / name).exists()
    there, here = (Checkpoint.load(RunFolder(folder / name).checkpoint) for name in ("there", "here"))
    assert torch.equal(there.weights, here.weights)

    status = json.loads(federation.run("status", "--json").stdout)
    assert {row["name"]: row["status"] for row in status["sites"]} == dict.fromkeys(SITES, "online")
    assert len(status["runs"]) == 1
    assert "finished" in status["runs"][0]["status"]

    asked = {site: [json.loads(line)["ask"] for line in sent(folder, site)] for site in SITES}
    assert asked["a"].count("train") == 2
    assert set(asked["held"]) == {"census", "evaluate"}
    assert "round 2: trained; sent model weights" in federation.output("a").read_text(encoding="utf-8")

    site_that_fails_is_named_on_the_screen(federation)

    assert federation.stop("b") == 130
    assert federation.stop("up") == 130
    for name in ("a", "c", "held"):
        federation.stop(name)
    assert "sites reconnect once it is back" in federation.output("up").read_text(encoding="utf-8")
    assert processes_that_mention(str(folder / "federation")) == []
    assert processes_that_mention("a-home") == []

    site_revoked_while_nothing_ran_is_refused(federation)


def site_revoked_while_nothing_ran_is_refused(federation: Commands) -> None:
    """Section 5: a revocation without a coordinator counts from its next start on."""
    home = federation.folder / "federation"
    former = {member.site: member.node for member in Members(home)}["a"]
    done = federation.run("revoke", "a")
    assert "a is no longer admitted" in done.stderr, done.stderr
    federation.start("up again", "up")
    welcome = federation.wait_for("up again", "Ctrl-C stops")
    assert "Sites: b, c, held." in welcome
    for site in ("a", "b"):
        federation.start(f"{site} again", "join", f"{site}.invitation", "--data", f"images/{site}")
    federation.wait_for("a again", "does not accept this key any more")
    federation.wait_for("b again", "waiting for work")
    assert "waiting for work" not in federation.output("a again").read_text(encoding="utf-8")
    nodes = known_nodes(CoordinatorHome.load(home).here, home)
    assert {node["status"] for node in nodes if node["node-id"] == former} <= {"unregistered"}


def site_that_fails_is_named_on_the_screen(federation: Commands) -> None:
    """The images of a site vanish in the middle of a run: its client raises, and the others go on."""
    folder = federation.folder
    tiny_job(folder / "images", rounds=3, evaluate_every=3).save(folder / "job.toml")
    words = ("--engine", "flower", "--coordinator", "federation", "--min-sites", "2", "--out", "failing")
    federation.start("train", "train", "job.toml", *words)
    records, until = folder / "failing" / "records.jsonl", time.monotonic() + PATIENCE
    while not (records.exists() and '"event": "round"' in records.read_text(encoding="utf-8")):
        assert time.monotonic() < until
        time.sleep(0.05)
    (folder / "images" / "c").rename(folder / "images" / "c-gone")
    assert federation.running["train"].wait(PATIENCE) == 0
    screen = federation.output("train").read_text(encoding="utf-8")
    assert "round 2: c was set aside: its data cannot be used" in screen
    assert "the reason is in the site's own log" in " ".join(screen.split())
    assert "c-gone" not in screen


def sent(folder: Path, site: str) -> list[str]:
    return (folder / f"{site}-home" / "sent.jsonl").read_text(encoding="utf-8").splitlines()
