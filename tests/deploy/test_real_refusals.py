"""Real SuperLink and SuperNodes with TLS and keys: foreign apps, raw samples, withdrawn keys are refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_commands import PATIENCE
from tiny_sites import make_images, tiny_job

from unseen.deploy.coordinator.coordinator import RoundPolicy
from unseen.deploy.coordinator.coordinator_home import CoordinatorHome
from unseen.deploy.coordinator.submit import run_on_flower, submit
from unseen.deploy.flower.compat import REFUSED_LOG
from unseen.deploy.identity.keys import read_public_key, site_key
from unseen.deploy.identity.members import Members, known_nodes
from unseen.deploy.site.ledger_chain import verify_ledger
from unseen.deploy.testing import LocalFederation
from unseen.errors import UnseenError

pytestmark = pytest.mark.deployment
MALLORY = """
import json, pathlib, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client_app = ClientApp()
server_app = ServerApp()

@client_app.query()
def steal(message, context):
    home, data = pathlib.Path(context.node_config["home"]), pathlib.Path(context.node_config["data"])
    (home / "mallory-was-here").touch()
    loot = {"key": next(home.glob("*.key")).read_text(), "files": [str(p) for p in data.rglob("*")]}
    return Message(RecordDict({"loot": ConfigRecord(loot)}), reply_to=message)

@server_app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 2:
        time.sleep(0.5)
    asked = [Message(RecordDict({"x": ConfigRecord({"y": 1})}), node, "query") for node in nodes]
    said = []
    for reply in grid.send_and_receive(asked, timeout=120):
        text = reply.error.reason if reply.has_error() else repr(dict(reply.content.config_records))
        said.append(text)
    pathlib.Path(context.run_config["out"]).write_text(json.dumps(said))
"""
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "{name}"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "{publisher}"
[tool.flwr.app.components]
serverapp = "{module}:server_app"
clientapp = "{module}:client_app"
[tool.flwr.app.config]
out = {out}
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    folder = tmp_path_factory.mktemp("refusals")
    images = make_images(folder / "images", sites=("a", "held"))
    with LocalFederation(images, folder / "federation").start(("a", "held")) as running:
        yield running


def foreign_app(folder: Path, *, publisher: str, name: str, module: str, out: Path) -> Path:
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").write_text(MALLORY, encoding="utf-8")
    text = PYPROJECT.format(publisher=publisher, name=name, module=module, out=json.dumps(str(out)))
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def wait_for_file(path: Path) -> str:
    until = time.monotonic() + PATIENCE
    while not path.exists() or not path.read_text(encoding="utf-8"):
        assert time.monotonic() < until, f"{path} was never written"
        time.sleep(0.2)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("publisher", "name", "module"), [("mallory", "spy", "spy"), ("unseen", "unseen-job", "unseen_job")]
)
def test_a_foreign_app_gets_nothing_and_the_attempt_is_recorded(
    federation: LocalFederation, tmp_path: Path, publisher: str, name: str, module: str
) -> None:
    """D1: a foreign app, also under our name, read a site's key and listed its data; no ledger told it."""
    out = tmp_path / "loot.json"
    app = foreign_app(tmp_path / "app", publisher=publisher, name=name, module=module, out=out)
    submit(app, federation.coordinator, home=tmp_path / "flwr")
    said = wait_for_file(out)
    replies = json.loads(said)
    assert len(replies) == 2
    assert all(f"'{publisher}/{name}' is refused, this site runs Unseen's own only" in one for one in replies)
    for secret in ("PRIVATE", ".png", "images"):
        assert secret not in said
    for site in ("a", "held"):
        home = federation.home / site
        assert not (home / "mallory-was-here").exists()
        assert not list(home.rglob("*spy*"))
        last = json.loads((home / "sent.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        assert last["ask"] == "foreign app"
        assert f"{publisher}/{name}" in last["error"]
        assert "is refused, this site runs Unseen's own only" in federation.log(site).read_text("utf-8")
        check = verify_ledger(home, public=(home / f"{site}.pub").read_text("utf-8").rsplit(" ", 1)[0])
        assert check.problem == ""
        assert check.signed == check.lines


def test_raw_samples_are_refused_by_the_policy_and_the_coordinator_reads_why(
    federation: LocalFederation, tmp_path: Path
) -> None:
    """D2: the job named `fedavg-share` with share 1, and all samples left."""
    config = tiny_job(federation.data, method="fedavg-share", settings={"share": 1.0}, sources=("a",))
    with pytest.raises(UnseenError, match="sends training samples and labels, and nothing of single samples"):
        run_on_flower(
            config, coordinator=federation.coordinator, out=tmp_path / "run", terms=RoundPolicy(deadline=20.0)
        )
    rows = (federation.home / "a" / "sent.jsonl").read_text(encoding="utf-8").splitlines()
    assert "refused by the site's policy" in json.loads(rows[-1])["error"]


def test_a_revoked_and_an_expired_key_are_refused(federation: LocalFederation) -> None:
    """Section 5: keys were good for ever; here both were registered with the SuperLink before."""
    home = CoordinatorHome.load(federation.home / "superlink")
    members = Members(home.path)
    for site in ("revoked", "expired"):
        members.add(site, read_public_key(site_key(federation.home / site, site).line))
    members.register(home.here)
    assert all(member.node for member in members)
    members.revoke("revoked", home.here)
    expired = members.get("expired")
    assert expired is not None
    members.add("expired", expired.key, days=-1)
    assert members.drop_expired(home.here) == ["expired"]
    members.revoke("a", home.here)
    names = {node["node-id"] for node in known_nodes(home.here, home.path) if node["status"] == "online"}
    assert {home.here.names[name] for name in names if name in home.here.names} == {"held"}

    for site in ("revoked", "expired"):
        federation.start_site(site)
    for site in ("revoked", "expired"):
        log, until = federation.log(site), time.monotonic() + PATIENCE
        while REFUSED_LOG not in log.read_text(encoding="utf-8"):
            assert time.monotonic() < until, log.read_text(encoding="utf-8")
            time.sleep(0.2)
        assert "SuperNode ID" not in log.read_text(encoding="utf-8")
    members.unregister_revoked(home.here)
    members.register(home.here, all_known=False)
    assert [member.site for member in members if member.node] == ["held"]
