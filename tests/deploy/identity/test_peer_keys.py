"""Round keys signed with the sites' keys: a coordinator that puts in keys of its own is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_sites import LoopbackGrid, tiny_job

from unseen.callbacks.base import Callback
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.flower.message import SiteMessage
from unseen.deploy.identity.keys import fingerprint, site_key
from unseen.deploy.identity.peer_keys import PEERS, SiteIdentity, copy_peers, read_peers
from unseen.errors import UnseenError, UsageError
from unseen.privacy import crypto
from unseen.privacy.secagg.message_forms import PUBLIC
from unseen.runs.folder import RunFolder
from unseen.runs.records import read_records

KEYS = bytes(range(64))
SOURCES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)


def peers_file(place: Path, lines: dict[str, str]) -> Path:
    text = "[sites]\n" + "".join(f'{site} = "{line}"\n' for site, line in lines.items())
    place.write_text(text, encoding="utf-8")
    return place


@pytest.fixture
def homes(tmp_path: Path) -> dict[str, Path]:
    """Homes of three sites that know each other's fingerprints."""
    found = {site: tmp_path / "sites" / site for site in SOURCES}
    lines = {site: fingerprint(site_key(home, site).line) for site, home in found.items()}
    for home in found.values():
        peers_file(home / PEERS, lines)
    return found


def identity(homes: dict[str, Path], site: str, run: str = "run") -> SiteIdentity:
    found = SiteIdentity.find(homes[site], site, run)
    assert found is not None
    return found


def test_a_signature_holds_for_its_run_round_client_and_keys_only(homes: dict[str, Path]) -> None:
    """Section 4: the server introduced clients, although sites have registered keys that could sign."""
    proof = identity(homes, "b").sign(client="b", round=3, keys=KEYS)
    check = identity(homes, "a").objection
    assert check(client="b", round=3, keys=KEYS, proof=proof) == ""
    for wrong in ({"client": "c"}, {"round": 4}, {"keys": KEYS[::-1]}, {"proof": []}, {"proof": proof[::-1]}):
        said = check(**{"client": "b", "round": 3, "keys": KEYS, "proof": proof, **wrong})
        assert "not signed by the key of site" in said and "\n" not in said
    other_run = identity(homes, "a", "another run")
    assert other_run.objection(client="b", round=3, keys=KEYS, proof=proof)
    forged = identity(homes, "c").sign(client="b", round=3, keys=KEYS)
    assert check(client="b", round=3, keys=KEYS, proof=forged), "a site signs for its own clients only"
    assert "belongs to no site" in check(client="x", round=3, keys=KEYS, proof=proof)


def test_several_clients_of_a_site_share_its_key(homes: dict[str, Path]) -> None:
    proof = identity(homes, "b").sign(client="b-2", round=1, keys=KEYS)
    assert identity(homes, "a").objection(client="b-2", round=1, keys=KEYS, proof=proof) == ""


def go(grid: LoopbackGrid, images: Path, out: Path, **changes: Any) -> None:
    config = tiny_job(images, protect="secure-sum", rounds=1, **changes)
    coordinate(
        grid,  # type: ignore[arg-type]
        config,
        out=out,
        resume=False,
        terms=RoundPolicy(deadline=30.0),
        callbacks=Callback(),
    )


def swap_key_of_b(site: str, question: SiteMessage, answer: SiteMessage) -> SiteMessage:
    """Put in a key of the coordinator's own, as a coordinator that wants to read b's masks would."""
    key = f"b/{PUBLIC}"
    if key in answer.arrays:
        own = b"".join(crypto.public_key(crypto.new_secret()) for _ in range(2))
        answer.arrays[key] = torch.frombuffer(bytearray(own), dtype=torch.uint8).numpy()
    return answer


def test_a_coordinator_that_swaps_a_key_is_noticed(
    homes: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    """Section 4: every honest site refuses to deal shares for the roster, and nothing is masked."""
    grid = LoopbackGrid(images, tmp_path / "sites")
    grid.spoil = swap_key_of_b
    with pytest.raises(UnseenError, match=r"not signed by the key of site b"):
        go(grid, images, tmp_path / "run")
    records = read_records(RunFolder(tmp_path / "run").records)
    told = {record["client"]: record["reason"] for record in records if record["event"] == "fault"}
    assert all("not signed by the key of site b" in told[site] for site in ("a", "c"))
    assert not [answer for _, question, answer in grid.log if question.header["ask"] == "train"]


def test_signed_rounds_run_and_the_record_says_so(
    homes: dict[str, Path], images: Path, tmp_path: Path
) -> None:
    go(LoopbackGrid(images, tmp_path / "sites"), images, tmp_path / "run")
    (record,) = (
        each for each in read_records(RunFolder(tmp_path / "run").records) if each["event"] == "round"
    )
    (line,) = (line for line in record["left"] if line["kind"] == "signature of the public keys")
    assert line["protected"] == "signed with the site's key" and record["clients"] == list(SOURCES)


def test_without_peers_the_log_says_who_introduces_the_sites(
    homes: dict[str, Path], images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (homes["a"] / PEERS).unlink()
    go(LoopbackGrid(images, tmp_path / "sites"), images, tmp_path / "run")
    assert "the coordinator introduces the other sites' keys" in caplog.text


def test_files_of_peers_are_checked(homes: dict[str, Path], tmp_path: Path) -> None:
    line = site_key(homes["b"], "b").line
    given = peers_file(tmp_path / "mine.toml", {"b": line})
    assert copy_peers(given, homes["a"]) == {"b": fingerprint(line)} == read_peers(homes["a"] / PEERS)
    with pytest.raises(UsageError, match="expected the fingerprint"):
        read_peers(peers_file(tmp_path / "wrong.toml", {"b": "hello"}))
    (tmp_path / "empty.toml").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="names no site"):
        read_peers(tmp_path / "empty.toml")
    with pytest.raises(UsageError, match="cannot read"):
        copy_peers(tmp_path / "missing.toml", homes["a"])
